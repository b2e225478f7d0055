// [row 27] refused value-bytes: a constant of 1 GiB that one index makes a compiler write out.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

const ZEROS = array<u32, 268435455>();
const ONE_OF_THEM = ZEROS[5];

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = ONE_OF_THEM;
}
