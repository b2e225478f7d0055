//! Random text never ends the process that checks it: soups of tokens, and a good shader with pieces moved, doubled and replaced.
#![allow(clippy::unwrap_used)] // A test that cannot set itself up has failed.

use kvasir_gpu_process::{ShaderLimits, check};
use proptest::prelude::*;

const GOOD: &str = include_str!("../../../tests/data/hostile-wgsl/good.wgsl");

/// Pieces of WGSL, weighted towards what a parser does much with.
const PIECES: &[&str] = &[
    "fn",
    "f",
    "g",
    "main",
    "var",
    "let",
    "const",
    "struct",
    "alias",
    "a",
    "b",
    "S",
    "return",
    "if",
    "else",
    "else if",
    "for",
    "while",
    "loop",
    "switch",
    "case",
    "default",
    "break",
    "continue",
    "continuing",
    "break if",
    "const_assert",
    "true",
    "false",
    "_",
    "u32",
    "i32",
    "f32",
    "bool",
    "vec2",
    "vec4<f32>",
    "vec3u",
    "mat2x2<f32>",
    "array",
    "array<u32, 4>",
    "ptr",
    "ptr<function, u32>",
    "atomic<u32>",
    "texture_2d<f32>",
    "sampler",
    "@compute",
    "@workgroup_size(1)",
    "@builtin(local_invocation_id)",
    "@group(0)",
    "@binding(3)",
    "var<storage, read_write>",
    "var<workgroup>",
    "var<private>",
    "select",
    "min",
    "dot4I8Packed",
    "bitcast<f32>",
    "workgroupBarrier()",
    "arrayLength",
    "0",
    "1u",
    "2i",
    "3.5",
    "0x7f800000u",
    "1e30f",
    "4294967295u",
    "2147483648",
    "-",
    "+",
    "*",
    "/",
    "%",
    "&",
    "|",
    "^",
    "~",
    "!",
    "<",
    ">",
    "<<",
    ">>",
    "<=",
    ">=",
    "==",
    "!=",
    "&&",
    "||",
    "=",
    "+=",
    "<<=",
    "++",
    "--",
    "->",
    ".",
    ".x",
    ".xy",
    ",",
    ";",
    ":",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "()",
    "{}",
    "[0]",
    "/*",
    "*/",
    "//",
    "\n",
    " ",
    "\r",
];

fn soup() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop::sample::select(PIECES), 0..400).prop_map(|pieces| pieces.join(" "))
}

/// Expressions that a parser takes, and a type checker mostly does not.
fn expression() -> impl Strategy<Value = String> {
    const LEAVES: &[&str] = &[
        "a",
        "b",
        "c",
        "x",
        "lane",
        "out",
        "weights",
        "job",
        "partial",
        "LANES",
        "1u",
        "2i",
        "3.5",
        "1e30f",
        "0x7f800000u",
        "4",
        "-2147483648",
        "4294967295u",
        "true",
        "vec4<u32>(1u)",
        "array<u32, 3>()",
        "job.count",
        "&x",
        "&out",
    ];
    const BINARY: &[&str] =
        &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", ">", "<=", ">=", "==", "!=", "&&", "||"];
    const CALLS: &[&str] = &[
        "u32",
        "i32",
        "f32",
        "bool",
        "vec2",
        "vec4<f32>",
        "bitcast<f32>",
        "bitcast<u32>",
        "array",
        "select",
        "min",
        "clamp",
        "dot4I8Packed",
        "unpack2x16float",
        "extractBits",
        "frexp",
        "dot",
        "scale",
        "arrayLength",
        "all",
        "ldexp",
        "Job",
        "workgroupUniformLoad",
        "mat2x2<f32>",
        "countOneBits",
        "sqrt",
        "pow",
    ];
    prop::sample::select(LEAVES).prop_map(str::to_owned).prop_recursive(5, 48, 4, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(BINARY), inner.clone())
                .prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            (prop::sample::select(&["-", "~", "!", "*", "&"][..]), inner.clone())
                .prop_map(|(operator, inner)| format!("{operator}({inner})")),
            (prop::sample::select(CALLS), proptest::collection::vec(inner.clone(), 0..4))
                .prop_map(|(name, arguments)| format!("{name}({})", arguments.join(", "))),
            (inner.clone(), inner.clone()).prop_map(|(base, index)| format!("{base}[{index}]")),
            (inner, prop::sample::select(&["x", "xy", "count", "wzyx"][..]))
                .prop_map(|(base, member)| format!("{base}.{member}")),
        ]
    })
}

/// Expressions that are all of type u32, so that what comes after the type checker is reached.
fn well_typed() -> impl Strategy<Value = String> {
    const LEAVES: &[&str] = &[
        "1u",
        "x",
        "b",
        "lane",
        "0u",
        "4294967295u",
        "out[x]",
        "weights[b]",
        "job.count",
        "job.outputs",
        "LANES",
        "largest",
        "u32(partial[lane & 63u])",
        "arrayLength(&out)",
        "v.x",
        "v[x & 3u]",
    ];
    const BINARY: &[&str] = &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"];
    const COMPARE: &[&str] = &["<", ">", "<=", ">=", "==", "!="];
    prop::sample::select(LEAVES).prop_map(str::to_owned).prop_recursive(5, 48, 3, |inner| {
        prop_oneof![
            (inner.clone(), prop::sample::select(BINARY), inner.clone())
                .prop_map(|(left, operator, right)| format!("({left} {operator} {right})")),
            inner.clone().prop_map(|inner| format!("~{inner}")),
            (inner.clone(), inner.clone(), inner.clone(), prop::sample::select(COMPARE))
                .prop_map(|(a, b, c, compare)| format!("select({a}, {b}, {c} {compare} {a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("extractBits({a}, {b}, 3u)")),
            inner.clone().prop_map(|a| format!("bitcast<u32>(dot({a}, 1u))")),
            inner.clone().prop_map(|a| format!("vec4<u32>({a}, 1u, 2u, x).w")),
            inner.clone().prop_map(|a| format!("bitcast<u32>(f32({a}) * 1.5)")),
            inner.clone().prop_map(|a| format!("firstLeadingBit({a})")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("out[min({a}, {b})]")),
        ]
    })
}

/// Statements of expressions that `expression` makes.
fn statements(expression: fn() -> BoxedStrategy<String>) -> impl Strategy<Value = String> {
    let name = || prop::sample::select(&["a", "b", "c", "x"][..]);
    let simple = prop_oneof![
        (prop::sample::select(&["let", "var", "const"][..]), name(), expression())
            .prop_map(|(kind, name, value)| format!("{kind} {name} = {value};")),
        (expression(), prop::sample::select(&["=", "+=", "<<=", "%="][..]), expression())
            .prop_map(|(place, operator, value)| format!("out[{place}] {operator} {value};")),
        (prop::sample::select(&["x", "v.y", "largest", "partial[0]", "job.count"][..]), expression())
            .prop_map(|(place, value)| format!("{place} = {value};")),
        prop::sample::select(
            &["break;", "continue;", "return;", "workgroupBarrier();", "x++;", ";", "discard;", "fill(&x);"]
                [..]
        )
        .prop_map(str::to_owned),
        expression().prop_map(|value| format!("_ = {value};")),
    ];
    let block = proptest::collection::vec(simple, 0..4).prop_map(|lines| lines.join(" ")).boxed();
    block.prop_recursive(3, 32, 3, move |inner| {
        prop_oneof![
            (expression(), inner.clone(), inner.clone())
                .prop_map(|(condition, yes, no)| format!("if {condition} > x {{ {yes} }} else {{ {no} }}")),
            (expression(), expression(), inner.clone()).prop_map(|(first, until, body)| format!(
                "for (var x = {first}; x < {until}; x++) {{ {body} }}"
            )),
            (inner.clone(), expression()).prop_map(|(body, until)| format!(
                "loop {{ {body} continuing {{ break if {until} == x; }} }}"
            )),
            (expression(), expression(), inner.clone(), inner.clone()).prop_map(
                |(selector, case, one, two)| format!(
                    "switch {selector} {{ case 7u: {{ {one} x = {case}; }} default: {{ {two} }} }}"
                )
            ),
            (inner.clone(), inner).prop_map(|(first, second)| format!("{first} {second}")),
        ]
    })
}

/// What happens to the good shader.
#[derive(Clone, Debug)]
enum Change {
    Remove(usize, usize),
    Double(usize, usize),
    Move(usize, usize, usize),
    Insert(usize, &'static str),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0usize..GOOD.len();
    prop_oneof![
        (at.clone(), 1usize..40).prop_map(|(at, length)| Change::Remove(at, length)),
        (at.clone(), 1usize..200).prop_map(|(at, length)| Change::Double(at, length)),
        (at.clone(), 1usize..80, at.clone()).prop_map(|(at, length, to)| Change::Move(at, length, to)),
        (at, prop::sample::select(PIECES)).prop_map(|(at, piece)| Change::Insert(at, piece)),
    ]
}

fn mutated(changes: &[Change]) -> String {
    // The good shader is ASCII, so every byte is a place to cut.
    let mut text = GOOD.to_owned();
    for change in changes {
        let within = |at: usize| at.min(text.len());
        match *change {
            Change::Remove(at, length) => {
                text.replace_range(within(at)..within(at + length), "");
            }
            Change::Double(at, length) => {
                let piece = text[within(at)..within(at + length)].to_owned();
                text.insert_str(within(at), &piece);
            }
            Change::Move(at, length, to) => {
                let range = within(at)..within(at + length);
                let piece = text[range.clone()].to_owned();
                text.replace_range(range, "");
                text.insert_str(to.min(text.len()), &piece);
            }
            Change::Insert(at, piece) => text.insert_str(within(at), piece),
        }
    }
    text
}

/// Whatever comes out, it comes out; and a refusal says something.
fn is_answered(source: &str) {
    if let Err(error) = check(source, &ShaderLimits::default()) {
        // A panic of the compiler is answered too; soups find some.
        assert!(!error.code().is_empty() && error.to_string().len() > 10);
    }
}

/// An entry point beside the good shader's own.
fn around(statements: &str) -> String {
    format!(
        "{GOOD}\n@compute @workgroup_size(64) fn soup(@builtin(local_invocation_index) lane: u32) {{
            var x = 1u; var v = vec4<u32>(lane); let b = lane; const c = 5; {{ {statements} }} }}"
    )
}

// With PROPTEST_CASES=12500 this was run to 300,000 shaders in 40 seconds: 8 panics of the compiler, all caught.
proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4 * ProptestConfig::default().cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn soups_of_tokens_are_answered(source in soup()) {
        is_answered(&source);
    }

    #[test]
    fn soups_of_statements_are_answered(source in statements(|| expression().boxed())) {
        is_answered(&around(&source));
    }

    #[test]
    fn soups_of_well_typed_statements_are_answered(source in statements(|| well_typed().boxed())) {
        is_answered(&around(&source));
    }

    #[test]
    fn a_constant_of_any_expression_is_answered(value in expression()) {
        is_answered(&format!("{GOOD}\nconst c = {value};\nvar<private> x: array<u32, {value}>;"));
    }

    #[test]
    fn changes_of_a_good_shader_are_answered(changes in proptest::collection::vec(change(), 1..6)) {
        is_answered(&mutated(&changes));
    }

    #[test]
    fn any_text_is_answered(source in "\\PC{0,200}") {
        is_answered(&source);
    }
}
