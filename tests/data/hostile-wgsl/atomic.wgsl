// [contract] refused not-allowed: sums would depend on the order of invocations; and a lock could be made of it.

@group(0) @binding(3) var<storage, read_write> lock: array<atomic<u32>>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    while atomicLoad(&lock[0]) == 0u {
    }
    atomicAdd(&lock[1], 1u);
}
