//! The shaders of this folder and those that a few lines write. Included by path into the tests of several crates.
#![allow(dead_code, clippy::unwrap_used)] // Each test uses a part of this; a fixture that cannot be made is a failure.

use std::path::Path;

/// A hostile shader and what must come of it.
pub struct Case {
    /// The file's name without its ending, or the generator's name for it.
    pub name: String,
    /// The kind of attack: `row 23`.
    pub kind: String,
    /// The source.
    pub source: String,
    /// The code of the refusal; `None` where it is accepted.
    pub refused: Option<String>,
}

/// Every shader, files first.
pub fn cases(folder: &Path) -> Vec<Case> {
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "wgsl"));
    paths.sort();
    let mut cases: Vec<Case> = paths.iter().map(|path| read(path)).collect();
    cases.extend(generated());
    cases
}

fn read(path: &Path) -> Case {
    let source = std::fs::read_to_string(path).unwrap();
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let header = source.strip_prefix("// [").and_then(|rest| rest.split_once("] ")).unwrap();
    let outcome = header.1.split_once(':').unwrap().0;
    let refused = outcome.strip_prefix("refused ").map(str::to_owned);
    assert!(refused.is_some() || outcome == "accepted", "{name}: {outcome}");
    Case { name, kind: header.0.to_owned(), refused, source: source.clone() }
}

/// The buffer that every generated shader writes.
const OUT: &str = "@group(0) @binding(3) var<storage, read_write> out: array<u32>;\n";

/// An entry point around `body`.
fn main(body: &str) -> String {
    format!(
        "{OUT}@compute @workgroup_size(64)\nfn main(@builtin(local_invocation_id) lane: vec3<u32>) {{\n{body}\n}}\n"
    )
}

/// `count` lines, each made from its number.
fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(|index| line(index) + "\n").collect()
}

/// Every refused one that a limit stops has beside it the same within the limit.
fn generated() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut case = |kind: &str, name: &str, refused: Option<&str>, source: String| {
        let (name, kind) = (name.to_owned(), kind.to_owned());
        cases.push(Case { name, kind, source, refused: refused.map(str::to_owned) });
    };

    let unary = |count: usize| main(&format!("out[0] = {}1u;", "~".repeat(count)));
    case("row 23", "unary-run", Some("depth"), unary(5000));
    case("row 23", "unary-run-at-limit", None, unary(370));

    let chain = |count: usize| main(&format!("out[0] = {};", vec!["out[1]"; count].join(" + ")));
    case("row 23", "operator-chain", Some("depth"), chain(5000));
    case("row 23", "operator-chain-at-limit", None, chain(185));

    let logic = |count: usize| main(&format!("if {} {{}}", vec!["lane.x == 1u"; count].join(" && ")));
    case("row 23", "logical-chain", Some("depth"), logic(3000));

    let else_if = |count: usize| {
        main(&format!(
            "if lane.x == 0u {{}}\n{}",
            lines(count, |index| format!("else if lane.x=={index}u {{}}"))
        ))
    };
    case("row 23", "else-if-chain", Some("depth"), else_if(2400));
    case("row 23", "else-if-chain-at-limit", None, else_if(90));

    let index = |count: usize| main(&format!("out[0] = {}1u{};", "out[".repeat(count), "]".repeat(count)));
    case("row 23", "nested-indices", Some("nesting"), index(5000));
    case("row 23", "nested-indices-at-limit", None, index(47));

    let postfix =
        |count: usize| main(&format!("var v = vec4<u32>(1u);\nout[0] = v{}.x;", ".xyzw".repeat(count)));
    case("row 23", "member-chain", Some("depth"), postfix(10_000));
    case("row 23", "member-chain-at-limit", None, postfix(370));

    let parentheses = |count: usize| main(&format!("out[0] = {}1u{};", "(".repeat(count), ")".repeat(count)));
    case("row 23", "nested-parentheses", Some("nesting"), parentheses(20_000));
    case("row 23", "nested-parentheses-at-limit", None, parentheses(47));

    // Few brackets and few operators in each, and yet one tree as deep as all of them together.
    let around = |count: usize| {
        let inner = (0..count).fold("1u".to_owned(), |inner, _| format!("({inner}){}", "+1u".repeat(20)));
        main(&format!("out[0] = {inner};"))
    };
    case("row 23", "chains-around-brackets", Some("depth"), around(40));
    case("row 23", "chains-around-brackets-at-limit", None, around(16));

    let braces = |count: usize| main(&format!("{}{}", "{".repeat(count), "}".repeat(count)));
    case("row 23", "nested-braces", Some("nesting"), braces(20_000));
    case("row 23", "nested-braces-at-limit", None, braces(47));

    let loops = |count: usize| {
        let open = lines(count, |index| format!("for (var i{index} = 0u; i{index} < 9u; i{index}++) {{"));
        main(&format!("{open}out[0] += 1u;\n{}", "}".repeat(count)))
    };
    case("row 23", "nested-loops", Some("nesting"), loops(900));
    case("row 23", "nested-loops-at-limit", None, loops(46));

    let templates =
        |count: usize| main(&format!("var v: {}u32{};", "array<".repeat(count), ", 1>".repeat(count)));
    case("row 23", "nested-templates", Some("depth"), templates(5000));
    case("row 23", "nested-templates-at-limit", None, templates(190));

    let constants = |count: usize| {
        let reversed = lines(count, |index| format!("const c{index} = c{}+1u;", index + 1));
        format!("{reversed}const c{count} = 1u;\n{}", main("out[0] = c0;"))
    };
    case("row 23", "constants-in-reverse", Some("declarations"), constants(2400));
    case("row 23", "constants-in-reverse-at-limit", None, constants(509));

    let functions = |count: usize| {
        let reversed = lines(count, |index| format!("fn f{index}() {{ f{}(); }}", index + 1));
        format!("{reversed}fn f{count}() {{ out[0] += 1u; }}\n{}", main("f0();"))
    };
    case("row 23", "functions-in-reverse", Some("functions"), functions(1900));
    case("row 23", "functions-in-reverse-at-limit", None, functions(254));

    let aliases = |count: usize| {
        let reversed = lines(count, |index| format!("alias a{index} = array<a{}, 1>;", index + 1));
        format!("{reversed}alias a{count} = u32;\n{}", main("var v: a0;\nlet w = v;"))
    };
    case("row 23", "aliases-in-reverse", Some("declarations"), aliases(1700));
    case("row 23", "aliases-in-reverse-at-limit", None, aliases(509));

    let comments = |count: usize| format!("{}{}{}", "/*".repeat(count), "*/".repeat(count), main(""));
    case("row 23", "nested-comments", Some("comment-nesting"), comments(10_000));
    case("row 23", "nested-comments-at-limit", None, comments(9));

    let straight = |count: usize| main(&"out[0]+=1u;\n".repeat(count));
    case("row 24", "straight-line-900-kb", Some("too-long"), straight(75_000));
    case("row 24", "straight-line-64-kb", Some("tokens"), straight(5_400));
    case("row 24", "straight-line-at-limit", None, straight(4_080));
    case("row 24", "blocks-64-kb", Some("statements"), main(&"{}".repeat(8_200)));
    case("row 24", "one-long-name", None, main(&format!("var {} = 1u;", "a".repeat(65_000))));
    case("row 24", "many-parameters", None, {
        let list = |item: fn(usize) -> String| (0..3000).map(item).collect::<Vec<_>>().join(",");
        format!(
            "fn f({}) {{}}\n{}",
            list(|index| format!("a{index}:u32")),
            main(&format!("f({});", list(|_| "1u".into())))
        )
    });
    case("row 24", "many-cases", None, {
        let cases = lines(1900, |index| format!("case {index}u: {{ out[1] = {index}u; }}"));
        main(&format!("switch lane.x {{\n{cases}default: {{}}\n}}"))
    });
    case("row 24", "many-entry-points", None, {
        let entries = lines(90, |index| format!("@compute @workgroup_size(64) fn m{index}() {{ work(); }}"));
        format!("{OUT}fn work() {{ {} }}\n{entries}", "out[0]+=1u;".repeat(3000))
    });
    case("row 24", "too-many-entry-points", Some("entry-points"), {
        format!(
            "{OUT}{}",
            lines(97, |index| format!("@compute @workgroup_size(64) fn m{index}() {{ out[0]+=1u; }}"))
        )
    });
    // Each pass of the analysis of barriers finds one more variable that differs.
    case("row 29", "variables-one-after-another", Some("barrier"), {
        let declared = lines(600, |index| format!("var a{index}=0u;"));
        let copied = lines(599, |index| format!("for(;;){{a{index}=a{};break;}}", index + 1));
        main(&format!("{declared}{copied}a599=lane.x;if a0>0u {{ workgroupBarrier(); }}"))
    });

    let doubled = |count: usize| {
        let arrays = lines(count, |index| format!("const a{} = array(a{index}, a{index});", index + 1));
        format!(
            "const a0 = array(1u, 1u);\n{arrays}{}",
            main(&format!("out[0] = a{count}{};", "[0]".repeat(count + 1)))
        )
    };
    case("row 40", "constants-that-double", Some("constant-copies"), doubled(24));
    case("row 40", "constants-that-double-beyond-u64", Some("constant-copies"), doubled(70));
    case("row 40", "constants-that-double-at-limit", None, doubled(11));

    let table = |uses: usize| {
        format!(
            "const table = array({});\n{}",
            vec!["1u"; 4000].join(","),
            main(&"out[0]=table[0];".repeat(uses))
        )
    };
    case("row 40", "constant-table-used-often", Some("constant-copies"), table(2000));
    case("row 40", "constant-table-at-limit", None, table(65));
    case("row 40", "constants-in-a-circle", Some("constant-copies"), {
        format!("const a = b;\nconst b = a;\n{}", main("out[0] = a;"))
    });
    cases
}
