//! How much a compiler copies when functions name the module's constants.
//!
//! naga copies the whole initialiser of a constant into a function wherever it is evaluated there, and what that initialiser names
//! along with it: a table of 4,000 numbers that 2,000 places index makes 8 million expressions, and constants that name the one
//! before them twice double each time. So every use counts as much as it may copy, from the tokens alone.

use std::collections::HashMap;

use crate::tokens::Kind;

/// The constants declared outside functions, and what names them.
#[derive(Default)]
pub(crate) struct Constants<'a> {
    declared: HashMap<&'a str, Initialiser<'a>>,
    /// The words outside of these constants' initialisers.
    uses: Vec<&'a str>,
    place: Place<'a>,
}

#[derive(Default)]
struct Initialiser<'a> {
    /// Words and numbers.
    size: usize,
    /// Words.
    names: Vec<&'a str>,
}

#[derive(Clone, Copy, Default)]
enum Place<'a> {
    #[default]
    Elsewhere,
    /// After `const`.
    Name,
    /// In the initialiser of a constant.
    Within(&'a str),
}

impl<'a> Constants<'a> {
    /// Takes the next token; `outside` tells whether it stands outside every bracket.
    pub fn token(&mut self, kind: Kind<'a>, outside: bool) {
        match (self.place, kind) {
            (Place::Elsewhere, Kind::Word("const")) if outside => self.place = Place::Name,
            (Place::Name, Kind::Word(name)) => {
                self.declared.entry(name).or_default();
                self.place = Place::Within(name);
            }
            (_, Kind::Mark(';')) if outside => self.place = Place::Elsewhere,
            (Place::Within(name), kind) => {
                let initialiser = self.declared.entry(name).or_default();
                if let Kind::Word(word) = kind {
                    initialiser.names.push(word);
                }
                initialiser.size += usize::from(!matches!(kind, Kind::Mark(_)));
            }
            (_, Kind::Word(word)) => self.uses.push(word),
            _ => {}
        }
    }

    /// The words and numbers that are copied at most. `usize::MAX` where constants need each other in a circle.
    pub fn copies(&self) -> usize {
        let mut known = HashMap::new();
        self.uses.iter().fold(0usize, |all, name| all.saturating_add(self.cost(name, &mut known)))
    }

    fn cost(&self, name: &'a str, known: &mut HashMap<&'a str, usize>) -> usize {
        let Some(initialiser) = self.declared.get(name) else { return 0 };
        if let Some(cost) = known.get(name) {
            return *cost;
        }
        // Stands until the real cost is known, so only a circle ever reads it.
        known.insert(name, usize::MAX);
        let names = initialiser.names.iter();
        let cost = names.fold(initialiser.size, |all, name| all.saturating_add(self.cost(name, known)));
        known.insert(name, cost);
        cost
    }
}
