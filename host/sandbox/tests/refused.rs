//! Components that must be refused before anything of them is compiled or run, each with its own reason.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

#[path = "../../../tests/data/hostile-plugin/plugin.rs"]
mod plugin;

use kvasir_sandbox::*;

fn refusal(component: Vec<u8>) -> SandboxError {
    let engine = Engine::shared().unwrap();
    match CompiledKernel::compile(&engine, &plugin::plugin(component)) {
        Ok(_) => panic!("the component was accepted"),
        Err(error) => error,
    }
}

fn refused(name: &str) -> SandboxError {
    refusal(plugin::refused(name))
}

fn assembled(text: &str) -> Vec<u8> {
    wat::parse_str(text).unwrap()
}

#[test]
fn imports_are_named() {
    let clock = "wasi:clocks/monotonic-clock@0.2.0".to_owned();
    assert_eq!(refused("import"), SandboxError::Import { name: clock });
    assert_eq!(refused("import-function"), SandboxError::Import { name: "print".to_owned() });
}

#[test]
fn nothing_runs_before_a_call() {
    assert!(matches!(refused("start-function"), SandboxError::StartFunction { offset } if offset > 8));
}

#[test]
fn relaxed_instructions_are_named_with_their_place() {
    for (name, text) in
        [("relaxed-multiply-add", "f32x4.relaxed_madd"), ("relaxed-swizzle", "i8x16.relaxed_swizzle")]
    {
        let component = plugin::refused(name);
        let error = refusal(component.clone());
        let SandboxError::RelaxedOperator { operator, offset } = error else { panic!("{name}: {error}") };
        assert_eq!(operator, text);
        // Every SIMD instruction begins with the prefix 0xfd.
        assert_eq!(component[offset], 0xfd, "{name}");
    }
}

/// The relaxed SIMD proposal in full: text, operands, result.
const RELAXED: [(&str, usize); 20] = [
    ("i8x16.relaxed_swizzle", 2),
    ("i32x4.relaxed_trunc_f32x4_s", 1),
    ("i32x4.relaxed_trunc_f32x4_u", 1),
    ("i32x4.relaxed_trunc_f64x2_s_zero", 1),
    ("i32x4.relaxed_trunc_f64x2_u_zero", 1),
    ("f32x4.relaxed_madd", 3),
    ("f32x4.relaxed_nmadd", 3),
    ("f64x2.relaxed_madd", 3),
    ("f64x2.relaxed_nmadd", 3),
    ("i8x16.relaxed_laneselect", 3),
    ("i16x8.relaxed_laneselect", 3),
    ("i32x4.relaxed_laneselect", 3),
    ("i64x2.relaxed_laneselect", 3),
    ("f32x4.relaxed_min", 2),
    ("f32x4.relaxed_max", 2),
    ("f64x2.relaxed_min", 2),
    ("f64x2.relaxed_max", 2),
    ("i16x8.relaxed_q15mulr_s", 2),
    ("i16x8.relaxed_dot_i8x16_i7x16_s", 2),
    ("i32x4.relaxed_dot_i8x16_i7x16_add_s", 3),
];

#[test]
fn of_all_relaxed_instructions_only_the_two_dots_pass() {
    for (text, operands) in RELAXED {
        let parameters = "v128 ".repeat(operands);
        let arguments: String = (0..operands).map(|index| format!("(local.get {index})")).collect();
        let component = assembled(&format!(
            "(component (core module (func (param {parameters}) (result v128) ({text} {arguments}))))"
        ));
        match inspect(&component) {
            Ok(facts) => {
                assert!(text.contains("dot"), "{text} was accepted");
                assert_eq!(facts.relaxed_dots, 1);
            }
            Err(SandboxError::RelaxedOperator { operator, .. }) => {
                assert!(!text.contains("dot"), "{text} was refused");
                assert_eq!(operator, text);
            }
            Err(other) => panic!("{text}: {other}"),
        }
    }
}

#[test]
fn proposals_that_no_kernel_needs_are_off() {
    for name in [
        "memory64",
        "two-memories",
        "shared-memory",
        "exceptions",
        "tail-call",
        "garbage-collection",
        "core-module",
    ] {
        let error = refused(name);
        assert!(matches!(error, SandboxError::Invalid { .. }), "{name}: {error:?}");
    }
}

#[test]
fn another_world_is_refused() {
    assert!(matches!(refused("no-exports"), SandboxError::WrongWorld { .. }));
    let contents = kvasir_plugin::PackageContents {
        manifest: String::from_utf8(plugin::manifest(1 << 20, 1))
            .unwrap()
            .replace("@0.1.0", "@9.9.9")
            .into_bytes(),
        component: plugin::kernel("honest"),
        ..Default::default()
    };
    let engine = Engine::shared().unwrap();
    let error = CompiledKernel::compile(&engine, &plugin::verified(&contents)).err().unwrap();
    assert_eq!(
        error.to_string(),
        "the kernel was built for contract 9.9.9, this host speaks 0.1.0: update kvasir"
    );
}

/// The refusal must be `OverLimit` of `what`, one above what passes.
fn over(what: &str, component: Vec<u8>) {
    let error = refusal(component);
    assert!(
        matches!(error, SandboxError::OverLimit { what: found, value, limit, .. } if found == what && value > limit),
        "{what}: {error:?}"
    );
}

#[test]
fn sizes_are_limited() {
    over("initial memory", plugin::refused("large-initial-memory"));
    over("table elements", plugin::refused("large-table"));
    let data = "\\00".repeat(MAX_DATA_BYTES + 1);
    over(
        "data segment bytes",
        assembled(&format!("(component (core module (memory 1) (data (i32.const 0) \"{data}\")))")),
    );
    let segments = "(data (i32.const 0) \"\")".repeat(MAX_DATA_SEGMENTS + 1);
    over("data segments", assembled(&format!("(component (core module (memory 1) {segments}))")));
    let functions = "(func)".repeat(MAX_FUNCTIONS + 1);
    over("functions", assembled(&format!("(component (core module {functions}))")));
    let body = "nop ".repeat(MAX_FUNCTION_BYTES);
    over("function bytes", assembled(&format!("(component (core module (func {body})))")));
    let locals = "i32 ".repeat(MAX_LOCALS as usize + 1);
    over("locals", assembled(&format!("(component (core module (func (local {locals}))))")));
    let (open, close) = ("block ".repeat(MAX_BLOCK_DEPTH + 1), "end ".repeat(MAX_BLOCK_DEPTH + 1));
    over("block depth", assembled(&format!("(component (core module (func {open} {close})))")));
    let modules = "(core module)".repeat(MAX_MODULES);
    over("nested modules", assembled(&format!("(component {modules})")));
    let (open, close) = ("(component ".repeat(MAX_MODULE_DEPTH + 1), ")".repeat(MAX_MODULE_DEPTH + 1));
    over("nesting depth", assembled(&format!("{open}{close}")));
}

#[test]
fn what_is_within_the_limits_passes() {
    let (open, close) = ("block ".repeat(MAX_BLOCK_DEPTH), "end ".repeat(MAX_BLOCK_DEPTH));
    let locals = "i32 ".repeat(MAX_LOCALS as usize);
    let functions = "(func)".repeat(MAX_FUNCTIONS - 1);
    let component = assembled(&format!(
        "(component (core module (memory 512) (table {MAX_TABLE_ELEMENTS} funcref)
           (func (local {locals}) {open} {close}) {functions}))"
    ));
    assert_eq!(inspect(&component).unwrap().functions, MAX_FUNCTIONS);
}

#[test]
fn bytes_cut_short_or_damaged_are_refused_or_harmless() {
    let honest = plugin::kernel("honest");
    assert_eq!(inspect(&honest).unwrap().exports, ["kvasir:expert/kernel@0.1.0"]);
    // Cut between two sections, what is left may be a smaller valid component. Then it exports nothing: all that may
    // stand behind the export is names and notes for people.
    let exported =
        wasmparser::Parser::new(0).parse_all(&honest).filter_map(|payload| match payload.unwrap() {
            wasmparser::Payload::ComponentExportSection(exports) => Some(exports.range().end),
            _ => None,
        });
    for length in 0..exported.max().unwrap() {
        if let Ok(facts) = inspect(&honest[..length]) {
            assert!(facts.exports.is_empty(), "cut at {length}");
        }
    }
    for offset in 0..honest.len() {
        let mut damaged = honest.clone();
        damaged[offset] ^= 0x55;
        // The verdict may be either; the scan must come back.
        let _ = inspect(&damaged);
    }
    assert!(
        matches!(refusal(b"(component)".to_vec()), SandboxError::Invalid { offset: 0, .. }),
        "text is no component"
    );
}
