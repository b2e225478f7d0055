// [row 27] refused invocations: 257 invocations as 257 x 1 x 1 are as many as 16 x 17 x 1, nearly.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(16, 17)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = 1u;
}
