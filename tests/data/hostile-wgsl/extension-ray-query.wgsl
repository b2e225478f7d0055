// [row 25] refused word: an extension that naga accepts as long as nothing uses it.

enable wgpu_ray_query;

@compute @workgroup_size(1)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
}
