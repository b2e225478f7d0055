// [row 26] accepted: whether it ends depends on the buffer.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    while out[lane.x] != 7u {
        out[lane.x] += 2u;
    }
}
