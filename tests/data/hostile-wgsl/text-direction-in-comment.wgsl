// [contract] refused character: the text looks other than it is.

/* ‮ } ⁦ */

@compute @workgroup_size(1)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
}
