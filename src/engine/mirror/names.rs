//! The ids of a partition's units, end to end in one text: no allocation and no pointer a unit.

/// Below this much waste a rewrite is not worth its while.
const TOLERATED_WASTE: usize = 64 * 1024;

/// Names, by where they start and how long they are.
#[derive(Default)]
pub(in crate::engine) struct Names {
    text: String,
    wasted: usize,
}

impl Names {
    /// Makes room for so many bytes more. Memory that grew step by step is not given back at once.
    pub fn reserve(&mut self, bytes: usize) {
        self.text.reserve_exact(bytes);
    }

    /// Adds a name and answers where it starts; `None` if the text is as long as it can be.
    pub fn add(&mut self, name: &str) -> Option<u32> {
        let start = u32::try_from(self.text.len()).ok()?;
        if self.text.capacity() - self.text.len() < name.len() {
            // Doubling would leave half of the memory of a large fleet unused.
            self.text.reserve_exact(self.text.len() / 8 + 1024);
        }
        self.text.push_str(name);
        Some(start)
    }

    /// The name that starts there.
    pub fn get(&self, start: u32, length: u8) -> &str {
        let start = start as usize;
        &self.text[start..start + usize::from(length)]
    }

    /// A name of that length is used no more.
    pub fn forget(&mut self, length: u8) {
        self.wasted += usize::from(length);
    }

    /// Whether more than half of the text is waste, so that it should be written anew.
    pub fn is_wasteful(&self) -> bool {
        self.wasted > TOLERATED_WASTE && self.wasted > self.text.len() / 2
    }

    /// Room for the names that are still used.
    pub fn anew(&self) -> Names {
        Names { text: String::with_capacity(self.text.len() - self.wasted), wasted: 0 }
    }

    /// How much memory it takes.
    pub fn bytes(&self) -> usize {
        self.text.capacity()
    }
}
