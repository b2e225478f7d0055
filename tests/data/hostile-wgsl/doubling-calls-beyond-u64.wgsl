// [row 28] refused inlined: as above, with more calls than a 64-bit integer counts.

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
fn f25() {
    f24();
    f24();
}
fn f26() {
    f25();
    f25();
}
fn f27() {
    f26();
    f26();
}
fn f28() {
    f27();
    f27();
}
fn f29() {
    f28();
    f28();
}
fn f30() {
    f29();
    f29();
}
fn f31() {
    f30();
    f30();
}
fn f32() {
    f31();
    f31();
}
fn f33() {
    f32();
    f32();
}
fn f34() {
    f33();
    f33();
}
fn f35() {
    f34();
    f34();
}
fn f36() {
    f35();
    f35();
}
fn f37() {
    f36();
    f36();
}
fn f38() {
    f37();
    f37();
}
fn f39() {
    f38();
    f38();
}
fn f40() {
    f39();
    f39();
}
fn f41() {
    f40();
    f40();
}
fn f42() {
    f41();
    f41();
}
fn f43() {
    f42();
    f42();
}
fn f44() {
    f43();
    f43();
}
fn f45() {
    f44();
    f44();
}
fn f46() {
    f45();
    f45();
}
fn f47() {
    f46();
    f46();
}
fn f48() {
    f47();
    f47();
}
fn f49() {
    f48();
    f48();
}
fn f50() {
    f49();
    f49();
}
fn f51() {
    f50();
    f50();
}
fn f52() {
    f51();
    f51();
}
fn f53() {
    f52();
    f52();
}
fn f54() {
    f53();
    f53();
}
fn f55() {
    f54();
    f54();
}
fn f56() {
    f55();
    f55();
}
fn f57() {
    f56();
    f56();
}
fn f58() {
    f57();
    f57();
}
fn f59() {
    f58();
    f58();
}
fn f60() {
    f59();
    f59();
}
fn f61() {
    f60();
    f60();
}
fn f62() {
    f61();
    f61();
}
fn f63() {
    f62();
    f62();
}
fn f64() {
    f63();
    f63();
}
fn f65() {
    f64();
    f64();
}
fn f66() {
    f65();
    f65();
}
fn f67() {
    f66();
    f66();
}
fn f68() {
    f67();
    f67();
}
fn f69() {
    f68();
    f68();
}
fn f70() {
    f69();
    f69();
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>) {
    f70();
}
