// [row 27] refused private-bytes: 1 KiB of local memory in a function that is called five times.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn helper(value: u32) -> u32 {
    var a: array<u32, 256>;
    a[value & 255u] = value;
    return a[3];
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[0] = helper(1u) + helper(2u) + helper(3u) + helper(4u) + helper(lane.x);
}
