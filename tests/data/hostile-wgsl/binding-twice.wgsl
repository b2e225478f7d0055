// [contract] refused invalid: two variables on one buffer escape the checks.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@group(0) @binding(3) var<storage, read_write> again: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = again[0];
}
