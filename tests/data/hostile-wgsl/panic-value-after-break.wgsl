// [row 25] refused compiler-panicked: naga 30 validates it and panics when it writes SPIR-V; the front door writes it once to see.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    loop {
        break;
        let turn = lane.x + 1u;
        continuing {
            break if turn == 7u;
        }
    }
    out[0] = 1u;
}
