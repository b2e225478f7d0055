// [row 29] refused barrier: some invocations never arrive.

var<workgroup> shared_sums: array<u32, 64>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    if lane.x < 3u {
        workgroupBarrier();
    }
    out[lane.x] = shared_sums[0];
}
