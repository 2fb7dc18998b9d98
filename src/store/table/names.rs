//! The ids of a partition's units, end to end in long texts: no allocation and no pointer for each unit.

/// The texts are rewritten only if they waste more than this.
const TOLERATED_WASTE: usize = 64 * 1024;

/// The length of a text. No name spans two texts, so a few bytes are unused at the end of each.
const TEXT: usize = 16 * 1024;

/// Names by start and length.
#[derive(Default)]
pub struct Names {
    /// Each text but the last is full, and none ever grows, for the reasons in [`super::blocks`].
    texts: Vec<String>,
    wasted: usize,
}

impl Names {
    /// Adds a name and answers where it starts; `None` if the texts are full.
    pub fn add(&mut self, name: &str) -> Option<u32> {
        if self.texts.last().is_none_or(|last| TEXT - last.len() < name.len()) {
            self.texts.push(String::with_capacity(TEXT));
        }
        let first = (self.texts.len() - 1) * TEXT;
        let last = self.texts.last_mut()?;
        let start = u32::try_from(first + last.len()).ok()?;
        last.push_str(name);
        Some(start)
    }

    /// The name at this start.
    pub fn get(&self, start: u32, length: u8) -> &str {
        let (text, start) = (start as usize / TEXT, start as usize % TEXT);
        &self.texts[text][start..start + usize::from(length)]
    }

    /// The bytes of a name, for comparing and hashing: reading it as text would check its character boundaries.
    pub fn bytes_of(&self, start: u32, length: u8) -> &[u8] {
        let (text, start) = (start as usize / TEXT, start as usize % TEXT);
        &self.texts[text].as_bytes()[start..start + usize::from(length)]
    }

    /// Notes that a name of this length is no longer used.
    pub fn forget(&mut self, length: u8) {
        self.wasted += usize::from(length);
    }

    /// Whether more than half of the texts is waste: rewrite them then.
    pub fn should_compact(&self) -> bool {
        self.wasted > TOLERATED_WASTE && self.wasted > self.bytes() / 2
    }

    /// The memory of the texts.
    pub fn bytes(&self) -> usize {
        self.texts.len() * TEXT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_come_back() {
        let mut names = Names::default();
        let name = |n: usize| "ä".repeat(n % 64) + &n.to_string();
        let starts: Vec<u32> = (0..3000).filter_map(|n| names.add(&name(n))).collect();
        assert!(names.texts.len() > 3, "they lie in several texts");
        for (n, start) in starts.into_iter().enumerate() {
            assert_eq!(names.get(start, name(n).len() as u8), name(n));
        }
    }
}
