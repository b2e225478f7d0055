// [row 27] refused workgroup-bytes: each array is within the limit, together they are not.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<workgroup> a: array<u32, 4096>;
var<workgroup> b: array<u32, 1>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    a[lane.x] = 1u;
    b[0] = 2u;
    out[lane.x] = a[0] + b[0];
}
