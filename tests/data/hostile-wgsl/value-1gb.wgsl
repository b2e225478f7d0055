// [row 27] refused value-bytes: no variable, only a value of 1 GiB.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    let a = array<u32, 268435455>();
    out[lane.x] = a[lane.y];
}
