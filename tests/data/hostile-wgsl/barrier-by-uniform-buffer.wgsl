// [row 29] accepted: bounds and an early return from the uniform buffer and workgroup_id.

@group(0) @binding(0) var<uniform> job: vec4<u32>;
@group(0) @binding(1) var<storage, read> weights: array<u32>;

var<workgroup> shared_sums: array<u32, 64>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    if group.x >= job.x {
        return;
    }
    let blocks = weights[group.x] & 15u;
    for (var block = 0u; block < blocks; block++) {
        if block == job.y {
            continue;
        }
        shared_sums[lane.x] += block;
        workgroupBarrier();
        if block == job.z {
            break;
        }
    }
    out[group.x] = shared_sums[0];
}
