// [row 27] refused invocations: more invocations than every GPU has.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(1024)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = 1u;
}
