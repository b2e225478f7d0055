// [row 27] refused uniform-bytes: a uniform buffer of 64 KiB.

@group(0) @binding(0) var<uniform> job: array<vec4<u32>, 4096>;

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = job[lane.y].x;
}
