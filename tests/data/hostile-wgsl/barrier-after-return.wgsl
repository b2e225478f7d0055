// [row 29] refused barrier: some invocations have returned.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    if lane.x > 3u {
        return;
    }
    workgroupBarrier();
    out[lane.x] = 1u;
}
