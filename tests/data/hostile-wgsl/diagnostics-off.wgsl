// [contract] refused word: a shader that silences its own checks.

diagnostic(off, derivative_uniformity);

@compute @workgroup_size(1)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
}
