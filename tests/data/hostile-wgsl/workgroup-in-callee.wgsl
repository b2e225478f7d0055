// [row 27] refused workgroup-bytes: as above, the second array is used by a function that it calls.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<workgroup> a: array<u32, 4096>;
var<workgroup> b: array<u32, 1>;

fn helper() {
    b[0] = 2u;
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    a[lane.x] = 1u;
    helper();
    out[lane.x] = a[0];
}
