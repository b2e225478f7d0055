// [contract] refused word: a size that is set after all checks.

override size: u32 = 4u;
var<workgroup> a: array<u32, size>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[0] = a[0];
}
