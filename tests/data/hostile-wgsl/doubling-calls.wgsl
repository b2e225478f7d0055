// [row 28] refused inlined: each function calls the one before it twice: 2^24 calls from 1 KB.

@group(0) @binding(3) var<storage, read_write> out: array<u32>;

fn f0() {
    out[0] += 1u;
}
fn f1() {
    f0();
    f0();
}
fn f2() {
    f1();
    f1();
}
fn f3() {
    f2();
    f2();
}
fn f4() {
    f3();
    f3();
}
fn f5() {
    f4();
    f4();
}
fn f6() {
    f5();
    f5();
}
fn f7() {
    f6();
    f6();
}
fn f8() {
    f7();
    f7();
}
fn f9() {
    f8();
    f8();
}
fn f10() {
    f9();
    f9();
}
fn f11() {
    f10();
    f10();
}
fn f12() {
    f11();
    f11();
}
fn f13() {
    f12();
    f12();
}
fn f14() {
    f13();
    f13();
}
fn f15() {
    f14();
    f14();
}
fn f16() {
    f15();
    f15();
}
fn f17() {
    f16();
    f16();
}
fn f18() {
    f17();
    f17();
}
fn f19() {
    f18();
    f18();
}
fn f20() {
    f19();
    f19();
}
fn f21() {
    f20();
    f20();
}
fn f22() {
    f21();
    f21();
}
fn f23() {
    f22();
    f22();
}
fn f24() {
    f23();
    f23();
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    f24();
}
