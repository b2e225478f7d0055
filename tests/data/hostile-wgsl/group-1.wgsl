// [contract] refused not-allowed: the host binds group 0 alone.

@group(1) @binding(3) var<storage, read_write> other: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    other[0] = 1u;
}
