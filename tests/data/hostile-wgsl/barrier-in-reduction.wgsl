// [row 29] accepted: what kernels do: a loop whose bounds are constants, between barriers.

var<workgroup> shared_sums: array<u32, 64>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    shared_sums[lane.x] = lane.x;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half >>= 1u) {
        if lane.x < half {
            shared_sums[lane.x] += shared_sums[lane.x + half];
        }
        workgroupBarrier();
    }
    out[group.x] = shared_sums[0];
}
