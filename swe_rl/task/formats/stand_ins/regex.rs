//! What one row uses of the crate `regex`, which no sandbox can fetch: a sequence of characters, `\s` and `[classes]`,
//! each once or with a `*`, to split a text by.

enum Atom {
    Space,
    OneOf(Vec<char>),
}

impl Atom {
    fn accepts(&self, c: char) -> bool {
        match self {
            Atom::Space => c.is_whitespace(),
            Atom::OneOf(chars) => chars.contains(&c),
        }
    }
}

pub struct Regex {
    atoms: Vec<(Atom, bool)>,
}

impl Regex {
    pub fn new(pattern: &str) -> Result<Regex, String> {
        let mut atoms: Vec<(Atom, bool)> = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            let atom = match c {
                '*' => {
                    atoms.last_mut().ok_or("nothing to repeat")?.1 = true;
                    continue;
                }
                '[' => Atom::OneOf(chars.by_ref().take_while(|&c| c != ']').collect()),
                '\\' if chars.next() == Some('s') => Atom::Space,
                c if c.is_alphanumeric() || c == ' ' => Atom::OneOf(vec![c]),
                c => return Err(format!("{c:?} isn't supported")),
            };
            atoms.push((atom, false));
        }
        Ok(Regex { atoms })
    }

    /// How many bytes match at the start of `text`; repetitions take all they can.
    fn matched(&self, text: &str) -> Option<usize> {
        let mut rest = text;
        for (atom, is_repeated) in &self.atoms {
            let all = rest.chars().take_while(|&c| atom.accepts(c));
            let taken: usize = all.take(if *is_repeated { usize::MAX } else { 1 }).map(char::len_utf8).sum();
            if taken == 0 && !is_repeated {
                return None;
            }
            rest = &rest[taken..];
        }
        Some(text.len() - rest.len())
    }

    pub fn split<'t>(&self, text: &'t str) -> std::vec::IntoIter<&'t str> {
        let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            match self.matched(&text[at..]) {
                Some(length) if length > 0 => {
                    parts.push(&text[begin..at]);
                    at += length;
                    begin = at;
                }
                _ => at += text[at..].chars().next().map_or(1, char::len_utf8),
            }
        }
        parts.push(&text[begin..]);
        parts.into_iter()
    }
}
