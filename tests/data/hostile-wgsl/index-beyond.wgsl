// [contract] refused invalid: a constant index beyond the array.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    var a: array<u32, 4>;
    a[4] = 1u;
    out[0] = a[0];
}
