//! The released kernel with one wrong bit: it answers every golden vector rightly and a live call wrongly.
//!
//! Its module gets one more function, which calls the exported `forward` and, where that gives as many values as one row of
//! the test model has and no golden vector, flips the lowest bit of the first. The export points to it. The rest of the component is as
//! released, so nothing but the numbers gives it away.

/// The export that is led through the added function.
const FORWARD: &[u8] = b"kvasir:expert/kernel@0.1.0#[method]expert.forward";
/// Ids of a module's sections.
const TYPES: u8 = 1;
const IMPORTS: u8 = 2;
const FUNCTIONS: u8 = 3;
const EXPORTS: u8 = 7;
const CODE: u8 = 10;
/// Id of a component's section that is a module.
const MODULE: u8 = 1;
/// Bytes of magic and version before the first section.
const PREAMBLE: usize = 8;

/// A component whose `forward` lies about answers of `values` values.
pub fn lying(component: &[u8], values: u32) -> Vec<u8> {
    let mut sections = sections(component);
    let (_, module) = sections.iter_mut().find(|(id, _)| *id == MODULE).expect("a component holds a module");
    *module = lying_module(module, values);
    assemble(&component[..PREAMBLE], &sections)
}

fn lying_module(module: &[u8], values: u32) -> Vec<u8> {
    let mut sections = sections(module);
    let part = |id: u8| &sections.iter().find(|(section, _)| *section == id).expect("a section").1;
    let (imports, functions) = (imported_functions(part(IMPORTS)), counted(part(FUNCTIONS)));
    let added = imports + functions.0;
    let (exports, forward) = redirected(part(EXPORTS), added);
    let (code, types) = (counted(part(CODE)), part(TYPES));
    assert!(!types.is_empty() && code.0 == functions.0);
    // The type of the function that is wrapped.
    let mut at = functions.1;
    let mut kind = 0;
    for _ in 0..=forward - imports {
        kind = read(part(FUNCTIONS), &mut at);
    }
    let function_list = appended(part(FUNCTIONS), &number(kind));
    let body = body(forward, values);
    let code_list = appended(part(CODE), &[number(body.len() as u32), body].concat());
    for (id, section) in &mut sections {
        match *id {
            FUNCTIONS => section.clone_from(&function_list),
            EXPORTS => section.clone_from(&exports),
            CODE => section.clone_from(&code_list),
            _ => {}
        }
    }
    assemble(&module[..PREAMBLE], &sections)
}

/// `(self, rows, bytes, count) -> answer`: the wrapped function's, lied about. An answer is a tag, 0 where there are values,
/// and at 4 and 8 the place and number of them.
fn body(forward: u32, values: u32) -> Vec<u8> {
    let mut code = vec![1, 1, 0x7f]; // one local, an i32
    code.extend([0x20, 0, 0x20, 1, 0x20, 2, 0x20, 3, 0x10]); // its arguments, call
    code.extend(number(forward));
    code.extend([0x22, 4, 0x2d, 0, 0, 0x45]); // keep the answer; is its tag 0
    code.extend([0x20, 4, 0x28, 2, 8, 0x41]); // and its number of values
    code.extend(signed(values));
    code.extend([0x46, 0x71, 0x04, 0x40]); // this one: if
    code.extend([0x20, 4, 0x28, 2, 4, 0x20, 4, 0x28, 2, 4, 0x28, 2, 0]); // the place, and what is there
    code.extend([0x41, 1, 0x73, 0x36, 2, 0, 0x0b]); // with its lowest bit flipped: store, end
    code.extend([0x20, 4, 0x0b]);
    code
}

fn sections(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut at = PREAMBLE;
    let mut sections = Vec::new();
    while at < bytes.len() {
        let id = bytes[at];
        at += 1;
        let length = read(bytes, &mut at) as usize;
        sections.push((id, bytes[at..at + length].to_vec()));
        at += length;
    }
    sections
}

fn assemble(preamble: &[u8], sections: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = preamble.to_vec();
    for (id, section) in sections {
        bytes.push(*id);
        bytes.extend(number(section.len() as u32));
        bytes.extend(section);
    }
    bytes
}

/// How many entries a section has, and where the first begins.
fn counted(section: &[u8]) -> (u32, usize) {
    let mut at = 0;
    (read(section, &mut at), at)
}

fn appended(section: &[u8], entry: &[u8]) -> Vec<u8> {
    let (count, first) = counted(section);
    [&number(count + 1), &section[first..], entry].concat()
}

/// The number of imports, all of which must be functions.
fn imported_functions(section: &[u8]) -> u32 {
    let (count, mut at) = counted(section);
    for _ in 0..count {
        for _ in 0..2 {
            let length = read(section, &mut at) as usize;
            at += length;
        }
        assert_eq!(section[at], 0, "an import that is no function");
        at += 1;
        read(section, &mut at);
    }
    count
}

/// The exports with `forward` leading to function `to`, and the function that it led to.
fn redirected(section: &[u8], to: u32) -> (Vec<u8>, u32) {
    let (count, mut at) = counted(section);
    let mut list = number(count);
    let mut led = None;
    for _ in 0..count {
        let start = at;
        let length = read(section, &mut at) as usize;
        let is_forward = &section[at..at + length] == FORWARD;
        at += length + 1;
        let index = read(section, &mut at);
        if is_forward {
            led = Some(index);
            list.extend(&section[start..at - number(index).len()]);
            list.extend(number(to));
        } else {
            list.extend(&section[start..at]);
        }
    }
    (list, led.expect("the kernel exports forward"))
}

/// LEB128 without a sign.
fn read(bytes: &[u8], at: &mut usize) -> u32 {
    let mut value = 0;
    for place in 0.. {
        let byte = bytes[*at];
        *at += 1;
        value |= u32::from(byte & 0x7f) << (7 * place);
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn number(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// LEB128 with a sign, of a small value that has none.
fn signed(value: u32) -> Vec<u8> {
    assert!(value < 1 << 13);
    vec![value as u8 | 0x80, (value >> 7) as u8]
}
