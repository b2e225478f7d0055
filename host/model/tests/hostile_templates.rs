//! Chat templates made to overflow the stack, eat memory or run for ever: each is a typed error, and soon.
//!
//! They are built here: as files they would be megabytes of the same character.

#![allow(clippy::unwrap_used)] // a test that panics has failed

mod forge;

use forge::Gguf;
use kvasir_model::{Message, Model, TemplateError};

fn model(template: &str) -> Model {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    let mut gguf = Gguf::small();
    gguf.text("tokenizer.chat_template", template);
    std::fs::write(&path, gguf.write().bytes).unwrap();
    // The mapping outlives the file's name.
    Model::open(&path).unwrap()
}

fn rendered(template: &str) -> Result<String, TemplateError> {
    model(template).chat_template().unwrap().render(&[Message::text("user", "hello")], &[], true)
}

fn refused(template: &str) -> TemplateError {
    match rendered(template) {
        Ok(text) => {
            panic!("{:.300} rendered {} bytes: {:.100}", template, text.len(), text)
        }
        Err(error) => error,
    }
}

/// Chains that the engine parses, compiles or drops by recursion: too long for the file's limit, for a tag's limit,
/// and as long as both allow.
#[test]
fn long_chains() {
    let chains: [(&str, &str, &str, &str); 9] = [
        ("{{ 1", "+1", "", " }}"),
        ("{{ ", "-", "1", " }}"),
        ("{{ ", "not ", "1", " }}"),
        ("{{ messages", ".a", "", " }}"),
        ("{{ 1", "|abs", "", " }}"),
        ("{{ 1", "~1", "", " }}"),
        ("{{ messages", "[0]", "", " }}"),
        ("{{ 1", " if 1 else 1", "", " }}"),
        ("{{ ", "(", "1", " }}"),
    ];
    for (begin, link, middle, end) in chains {
        let chain = |count: usize| format!("{begin}{}{middle}{end}", link.repeat(count));
        let error = refused(&chain(70_000));
        assert!(matches!(error, TemplateError::TooLong { .. }), "{link}: {error}");
        let within_the_file = refused(&chain(60_000 / link.len()));
        assert!(
            matches!(&within_the_file, TemplateError::Unsupported(what) if what.contains("1024 tokens")),
            "{link}: {within_the_file}"
        );
        // Rendered or refused, whichever: the process lives.
        let _ = rendered(&chain(330));
        let _ = rendered(&chain(1000));
    }
    let alternatives = |count: usize| format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(count));
    assert!(matches!(refused(&alternatives(20_000)), TemplateError::TooLong { .. }));
    assert!(
        matches!(refused(&alternatives(5_000)), TemplateError::Unsupported(what) if what.contains("elif tags"))
    );
    assert_eq!(rendered(&alternatives(256)).unwrap(), "");
    let nested = format!("{}{}", "{% if 1 %}".repeat(3_000), "{% endif %}".repeat(3_000));
    assert!(matches!(refused(&nested), TemplateError::Syntax(_)));
    // A full file of tags, each as long as it may be.
    let full = format!("{{{{ {}1 }}}}", "-".repeat(1000)).repeat(62);
    let _ = rendered(&full);
}

/// Values that contain themselves, or so many levels or parts that whoever walks them does not come back.
#[test]
fn values_without_end() {
    let ns = "{% set ns = namespace(x=[1]) %}";
    let doubled = format!("{ns}{{% for i in range(60) %}}{{% set ns.x = [ns.x, ns.x] %}}{{% endfor %}}");
    let straight = format!("{{% set x = ['a'] %}}{}", "{% set x = [x, x] %}".repeat(60));
    let loops = |step: &str, body: &str| {
        let begins: String = (0..60).map(|_| format!("{{% for x in {step} %}}")).collect();
        format!("{{% set x = ['a'] %}}{begins}{body}{}", "{% endfor %}".repeat(60))
    };
    for template in [
        format!("{ns}{{% for i in range(90000) %}}{{% set ns.x = [ns.x] %}}{{% endfor %}}done"),
        format!("{ns}{{% for i in range(90000) %}}{{% set ns.x = {{'a': ns.x}} %}}{{% endfor %}}done"),
        format!("{ns}{{% for i in range(90000) %}}{{% set ns.x = ns.x, 1 %}}{{% endfor %}}done"),
        format!(
            "{ns}{{% for i in range(90000) %}}{{% set y = [ns.x] %}}{{% set ns.x = y %}}{{% endfor %}}done"
        ),
        format!("{ns}{{% for i in range(90000) %}}{{% set y, ns.x = 1, [ns.x] %}}{{% endfor %}}done"),
        format!("{doubled}{{{{ ns.x|tojson|length }}}}"),
        format!("{doubled}{{{{ ns.x|string|length }}}}"),
        format!("{doubled}{{{{ ns.x }}}}"),
        format!("{doubled}{{{{ ns.x ~ '' }}}}"),
        format!("{straight}{{{{ x ~ '' }}}}"),
        format!("{straight}{{{{ x == [x] }}}}"),
        format!("{straight}{{{{ x|join }}}}"),
        straight.replace("[x, x]", "(x, x)") + "{{ x }}",
        straight.replace("[x, x]", "x, x") + "{{ x }}",
        straight.replace("[x, x]", "{'a': x, 'b': x}") + "{{ x }}",
        straight.replace("[x, x]", "{(x, x): 1}") + "{{ x }}",
        straight.replace("[x, x]", "x + x") + "{{ x|length }}",
        straight.replace("[x, x]", "x ~ x") + "{{ x|length }}",
        straight.replace("[x, x]", "[[x], [x]]|map('first')|list") + "{{ x }}",
        loops("[[x, x]]", "{{ x }}"),
        loops("[] or [[x, x]]", "{{ x }}"),
        loops("[1, [x, x]][1:]", "{{ x }}"),
        loops("[x + x]", "{{ x ~ '' }}"),
        loops("((x, x) if 0 else [[x, x]])", "{{ x }}"),
        "{% macro m(x) %}{{ m([x, x]) }}{% endmacro %}{{ m([1]) }}".to_owned(),
        "{% macro m(x) %}{{ m(x + x) }}{% endmacro %}{{ m([1]) }}".to_owned(),
        "{% macro m(x) %}{{ m(x=x + x) }}{% endmacro %}{{ m([1]) }}".to_owned(),
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m([1]) }}".to_owned(),
    ] {
        let error = refused(&template);
        assert!(
            matches!(
                error,
                TemplateError::TooLarge(_) | TemplateError::TooManySteps(_) | TemplateError::Render(_)
            ),
            "{template:.200}: {error:?}"
        );
    }
}

/// A namespace is the only value that can be changed, so the only one that could come to contain itself.
#[test]
fn namespaces_are_used_by_their_attributes_only() {
    for template in [
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}",
        "{% set ns = namespace() %}{% set a, ns.x = 1, ns %}{{ ns.x }}",
        "{% set ns = namespace() %}{% for n in [ns] %}{% set ns.x = n %}{{ ns.x }}{% endfor %}",
        "{% set ns = namespace() %}{{ ns|tojson }}",
        "{% set ns = namespace %}{% set n = ns() %}{% set n.x = n %}{{ n }}",
        "{% set ns = namespace() if 1 else 0 %}{% set ns.x = ns %}",
        "{% set ns = (namespace()) %}{% set ns.x = ns %}",
        "{% set a, ns = 1, namespace() %}{% set ns.x = ns %}",
        "{% set ns = namespace()|default(1) %}{% set ns.x = ns %}",
        "{% for ns in [namespace()] %}{% set ns.x = ns %}{{ ns }}{% endfor %}",
        "{% macro m(f) %}{% set ns = f() %}{% set ns.x = ns %}{{ ns }}{% endmacro %}{{ m(namespace) }}",
        "{% macro m(f=namespace) %}{{ f() }}{% endmacro %}{{ m() }}",
        "{% set namespace = namespace() %}{% set namespace.x = namespace %}",
    ] {
        let error = refused(template);
        assert!(matches!(error, TemplateError::Unsupported(_)), "{template}: {error:?}");
    }
    // The namespace lives on in the macro that it holds: it is not printed.
    let closure =
        "{% set ns = namespace() %}{% macro m() %}{{ ns.x }}{% endmacro %}{% set ns.x = m %}{{ m() }}";
    let _ = rendered(closure);
    assert_eq!(
        rendered("{% set ns = namespace(a=1, b=[2]) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b[0] }}")
            .unwrap(),
        "22"
    );
}

/// Small texts that stand for very large ones.
#[test]
fn texts_without_end() {
    for template in [
        "{{ (['a'*100000]*60000)|join('')|length }}",
        "{{ 'a' * 99999999 }}",
        "{{ 2 ** 99999999 }}",
        "{{ '%99999999d'|format(1) }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ '%99999999d' % 1 }}",
        "{% set x = 'aaaaaaaaaaaaaaaa' %}{% for i in range(40) %}{% set x = x ~ x %}{{ x }}{% endfor %}{{ x|pprint }}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s|replace('a', n.s) %}{% endfor %}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s|list|join(n.s) %}{% endfor %}",
        "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(40) %}{% set n.s = n.s.join(n.s|list) %}{% endfor %}",
        "{{ 'a\nb'|indent(999999999999) }}",
        "{{ range(99999)|map('default')|join('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')|list|tojson|list|tojson }}",
        "{{ range(999999999999)|list }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='') %}{% for i in range(1300000) %}{% set n.s = n.s ~ 'aaaaaaaaaaaaaaaa' %}{% endfor %}",
    ] {
        let error = refused(template);
        assert!(
            matches!(
                error,
                TemplateError::Unsupported(_)
                    | TemplateError::TooLarge(_)
                    | TemplateError::TooManySteps(_)
                    | TemplateError::RenderedTooLong { .. }
                    | TemplateError::Render(_)
            ),
            "{template}: {error:?}"
        );
    }
    let long = "{% for i in range(5000) %}{{ messages[0].content }}{% endfor %}";
    let message = [Message::text("user", &"x".repeat(5000))];
    let error = model(long).chat_template().unwrap().render(&message, &[], true).unwrap_err();
    assert!(matches!(error, TemplateError::RenderedTooLong { limit: 16_777_216 }), "{error}");
}

/// Constructs that chat templates do without are named, not run.
#[test]
fn unknown_constructs_are_named() {
    for (template, what) in [
        ("{% with x = 1 %}{{ x }}{% endwith %}", "the tag \"with\""),
        ("{% filter upper %}x{% endfilter %}", "the tag \"filter\""),
        ("{% include 'x' %}", "the tag \"include\""),
        ("{{ [1, 2]|batch(1) }}", "the filter \"batch\""),
        ("{{ [1]|zip([2]) }}", "the filter \"zip\""),
        ("{{ 2 * 3 }}", "the operator *"),
        ("{% macro m(a=[1]) %}{% endmacro %}", "a macro's parameter"),
        ("{% set (a, b) = [1, 2] %}", "an assignment to other than plain names"),
    ] {
        let error = refused(template).to_string();
        assert!(error.contains(what), "{template}: {error}");
    }
    for template in [
        "{{ [[1]]|map('batch', 1)|list }}",
        "{{ [1]|map('zip', [2])|list }}",
        "{{ dict(a=1) }}",
        "{{ debug() }}",
    ] {
        assert!(matches!(refused(template), TemplateError::Render(_)), "{template}");
    }
}

/// A terminal would act on them.
#[test]
fn control_characters_of_a_template_are_escaped() {
    let error = refused("{{ raise_exception('a\x1b[31m\x07') }}");
    assert_eq!(error.to_string(), r"the template refuses these messages: a\u{1b}[31m\u{7}");
    for template in ["{{ strftime_now('%\x1b') }}", "{{ x|a\x1b }}", "{{ 'x'['\x1b'].y.z }}", "{% \x1b %}"] {
        let text = refused(template).to_string();
        assert!(!text.contains('\x1b'), "{text:?}");
    }
}

/// The guards leave templates as they were.
#[test]
fn guards_change_nothing() {
    for (template, expected) in [
        ("{{ [1, (2, 3), {'a': [4]}, [],] }}", "[1, (2, 3), {'a': [4]}, []]"),
        ("{{ (1 if false else 2) + 3 }}", "5"),
        ("{% for k, v in {'a': 1, 'b': [2]}.items() %}{{ k }}={{ v }};{% endfor %}", "a=1;b=[2];"),
        ("{{ 'a,b'.split(',')[1:][0] }}{{ [1,2,3][::-1] }}", "b[3, 2, 1]"),
        ("{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1, c=[2]) }}", "1x[2]"),
        ("{{ nosuch|default('d') }}{{ (nosuch) }}{{ (nosuch is defined) }}", "dFalse"),
        ("{% set x %}a{{ [1] }}{% endset %}{{ x }}", "a[1]"),
        ("{% set x | upper %}a{% endset %}{{ x }}", "A"),
        ("{{ 'a' in ['a', 'b'] and not 'c' in ('a', 'b') }}", "True"),
        ("{{ [{'k': 1}, {'k': 2}]|selectattr('k', 'equalto', 2)|map(attribute='k')|list }}", "[2]"),
        (
            "{% for x in [1, 2, 3] if x is not divisibleby(2) %}{{ loop.cycle('a', 'b') }}{{ x }}{% endfor %}",
            "a1b3",
        ),
        ("{% set a, b = 1, [2] %}{{ a }}{{ b }}", "1[2]"),
        ("{{ messages[-1]['content'][:2] ~ messages[0].role }}", "heuser"),
        ("{% raw %}{{ x * {% y %}{% endraw %}{# {{ * #}", "{{ x * {% y %}"),
        ("{% if not('x'.startswith('y') and true) and 'l' not in ('h', 'm') %}yes{% endif %}", "yes"),
        ("{{ 'a' + ('b' if messages else '') + 'c' }}", "abc"),
        (
            "{%- set n = namespace(i=messages|length - 1) %}{% for k, v in {'a': [1]}|items %}{% set v = v | string if v is string else v | tojson | safe %}{{ k ~ v ~ n.i }}{% endfor %}",
            "a[1]0",
        ),
        (
            "{% macro m(c, count, is_system=false) %}{% if c is iterable and c is not mapping %}{{ c|length }}{% endif %}{% endmacro %}{{ m([1, 2], false)|trim }}",
            "2",
        ),
        ("{%- set ns = namespace(a='é', b={'k': ['v']}) -%} é{{ ns.b['k'][0] }} ", "év "),
    ] {
        assert_eq!(rendered(template).unwrap(), expected, "{template}");
    }
}

/// A long prompt is within the budget.
#[test]
fn long_prompts_render() {
    let template = "{% for message in messages %}{% set content = (message.content)|trim %}\
                    {% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}\
                    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' }}{% endfor %}";
    let message = Message::text("user", &"words and words ".repeat(120_000));
    let text = model(template).chat_template().unwrap().render(&[message], &[], true).unwrap();
    assert!(text.len() > 1_900_000);
}
