// [row 27] refused workgroup-bytes: naga accepts any number of workgroup arrays below 1 GiB; a driver hangs on them.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<workgroup> a: array<u32, 268435455>;
var<workgroup> b: array<u32, 268435455>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    a[lane.x] = 1u;
    b[lane.x] = 2u;
    out[lane.x] = a[0] + b[0];
}
