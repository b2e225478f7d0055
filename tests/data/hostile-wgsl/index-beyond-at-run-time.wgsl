// [contract] accepted: wgpu checks indices at run time: the read gives some word of the buffer or zero, the write goes nowhere else.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x + 4000000000u] = out[lane.x + 3000000000u];
}
