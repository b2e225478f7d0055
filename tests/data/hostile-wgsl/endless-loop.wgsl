// [row 26] accepted: it never ends; the host kills the process at its deadline.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    loop {
        out[0] += 1u;
    }
}
