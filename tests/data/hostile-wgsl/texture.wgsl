// [contract] refused not-allowed: a kernel has buffers alone.

@group(0) @binding(1) var image: texture_2d<f32>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[0] = u32(textureLoad(image, vec2<i32>(0, 0), 0).x);
}
