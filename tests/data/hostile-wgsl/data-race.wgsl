// [row 29] accepted: all invocations write one place; the numbers are compared with the exact kernel.

var<workgroup> shared_sums: array<u32, 64>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    shared_sums[0] = lane.x;
    workgroupBarrier();
    out[group.x] = shared_sums[0];
}
