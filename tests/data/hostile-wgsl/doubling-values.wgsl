// [row 28] refused inlined: as above, through arguments and results.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn f0(x: u32) -> u32 {
    return x + 1u;
}
fn f1(x: u32) -> u32 {
    return f0(f0(x));
}
fn f2(x: u32) -> u32 {
    return f1(f1(x));
}
fn f3(x: u32) -> u32 {
    return f2(f2(x));
}
fn f4(x: u32) -> u32 {
    return f3(f3(x));
}
fn f5(x: u32) -> u32 {
    return f4(f4(x));
}
fn f6(x: u32) -> u32 {
    return f5(f5(x));
}
fn f7(x: u32) -> u32 {
    return f6(f6(x));
}
fn f8(x: u32) -> u32 {
    return f7(f7(x));
}
fn f9(x: u32) -> u32 {
    return f8(f8(x));
}
fn f10(x: u32) -> u32 {
    return f9(f9(x));
}
fn f11(x: u32) -> u32 {
    return f10(f10(x));
}
fn f12(x: u32) -> u32 {
    return f11(f11(x));
}
fn f13(x: u32) -> u32 {
    return f12(f12(x));
}
fn f14(x: u32) -> u32 {
    return f13(f13(x));
}
fn f15(x: u32) -> u32 {
    return f14(f14(x));
}
fn f16(x: u32) -> u32 {
    return f15(f15(x));
}
fn f17(x: u32) -> u32 {
    return f16(f16(x));
}
fn f18(x: u32) -> u32 {
    return f17(f17(x));
}
fn f19(x: u32) -> u32 {
    return f18(f18(x));
}
fn f20(x: u32) -> u32 {
    return f19(f19(x));
}
fn f21(x: u32) -> u32 {
    return f20(f20(x));
}
fn f22(x: u32) -> u32 {
    return f21(f21(x));
}
fn f23(x: u32) -> u32 {
    return f22(f22(x));
}
fn f24(x: u32) -> u32 {
    return f23(f23(x));
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    out[lane.x] = f24(lane.x);
}
