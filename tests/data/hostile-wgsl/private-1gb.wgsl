// [row 27] refused private-bytes: a private array of 1 GiB.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<private> a: array<u32, 268435455>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    a[lane.x] = 1u;
    out[lane.x] = a[3];
}
