// [contract] refused not-allowed: it would write where the host has weights that others read.

@group(0) @binding(1) var<storage, read_write> weights: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    weights[lane.x] = 1u;
}
