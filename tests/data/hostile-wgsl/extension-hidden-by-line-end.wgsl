// [contract] refused character: U+2028 ends a line comment for WGSL and for no editor.

// nothing to see here enable wgpu_ray_query;

@compute @workgroup_size(1)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
}
