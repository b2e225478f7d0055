// [row 27] refused workgroup-bytes: no entry point uses it, a compiler may look at it.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

var<workgroup> a: array<u32, 268435455>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = 1u;
}
