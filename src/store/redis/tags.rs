//! The hash tags of partitions. The tag at the beginning of a key decides on which server of a cluster the key is.
//!
//! A cluster deals 16384 slots to its primaries in contiguous ranges of about the same size. The slots of `{p0}`,
//! `{p1}` and so on are practically random: with 48 partitions on three primaries, one primary may get half as many
//! again as another. A spread tag `{pN.s}` has its slot in the N-th of as many equal parts of the slots as there are
//! partitions, so each primary gets its share, and neighbouring partitions are on the same primary.
//!
//! # Why the middle half of each part
//! `redis-cli` rounds the bounds of ranges, and operators move single slots. A tag in the middle of its part stays
//! on its side of a bound.

use std::fmt;

use crate::store::crc16;

/// The number of slots of every cluster.
const SLOTS: u64 = 16_384;

/// The form of the tags of a fleet, fixed when the fleet is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashTags {
    /// `{pN}`.
    #[default]
    Plain,
    /// `{pN.s}`: `s` is the smallest number for which the slot is in the middle half of the N-th part.
    Spread,
}

/// The word in `meta`.
impl fmt::Display for HashTags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HashTags::Plain => "plain",
            HashTags::Spread => "spread",
        })
    }
}

impl HashTags {
    /// Reads the field of `meta`, which is absent for plain tags; `None` for another word.
    pub fn read(field: Option<&str>) -> Option<HashTags> {
        match field {
            None => Some(HashTags::Plain),
            Some(word) => {
                [HashTags::Plain, HashTags::Spread].into_iter().find(|tags| tags.to_string() == word)
            }
        }
    }

    /// The tag of a partition, without braces.
    pub fn tag(self, partition: u16, partitions: u16) -> String {
        let plain = format!("p{partition}");
        if self == HashTags::Plain {
            return plain;
        }
        let mut tag = plain + ".";
        let begin = tag.len();
        for number in 0u64.. {
            tag.truncate(begin);
            tag += &number.to_string();
            if is_in_middle(slot(&tag), partition, partitions) {
                break;
            }
        }
        tag
    }
}

/// The slot of every key with this tag (without braces).
pub fn slot(tag: &str) -> u16 {
    crc16(&[tag.as_bytes()]) % SLOTS as u16
}

/// Whether a slot is in the middle half of the part of a partition.
fn is_in_middle(slot: u16, partition: u16, partitions: u16) -> bool {
    // Positions are in quarters of a part.
    let position = 4 * u64::from(slot) * u64::from(partitions);
    let begin = 4 * u64::from(partition) * SLOTS;
    (begin + SLOTS..begin + 3 * SLOTS).contains(&position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presence::Unit;
    use crate::store::partition_of;

    #[test]
    fn every_partition_has_a_tag_in_its_part_of_the_slots() {
        for partitions in [1, 2, 3, 16, 48, 96, 1000, 1024] {
            for partition in 0..partitions {
                let tag = HashTags::Spread.tag(partition, partitions);
                let part = u64::from(slot(&tag)) * u64::from(partitions) / SLOTS;
                assert_eq!(part, u64::from(partition), "{tag} of {partitions}");
                let number = tag.strip_prefix(&format!("p{partition}.")).unwrap();
                assert!(number.parse::<u64>().unwrap() < 100_000, "{tag}");
            }
        }
    }

    /// Other programs find keys by these tags and slots.
    #[test]
    fn tags_and_slots_stay_as_they_are() {
        assert_eq!(HashTags::Plain.tag(7, 48), "p7");
        let spread = |partition| HashTags::Spread.tag(partition, 48);
        assert_eq!((spread(0), spread(47)), ("p0.52".to_owned(), "p47.42".to_owned()));
        // The answers of `CLUSTER KEYSLOT`.
        assert_eq!((slot("123456789"), slot("foo"), slot("p0.52")), (12_739, 12_182, 217));
        // The first part of 48 has the slots 0 to 341.
        assert!([86, 217, 255].into_iter().all(|slot| is_in_middle(slot, 0, 48)));
        assert!([0, 85, 256, 341, 16_383].into_iter().all(|slot| !is_in_middle(slot, 0, 48)));
    }

    /// The first slot of each primary, as `redis-cli --cluster create` deals them.
    fn first_slots(primaries: u16) -> Vec<u16> {
        let share = SLOTS as f64 / f64::from(primaries);
        (0..primaries).map(|index| (f64::from(index) * share).round() as u16).collect()
    }

    #[test]
    fn primaries_get_equal_shares_of_partitions() {
        for primaries in [3, 6, 12] {
            let firsts = first_slots(primaries);
            let mut shares = vec![0u32; firsts.len()];
            for partition in 0..48 {
                let slot = slot(&HashTags::Spread.tag(partition, 48));
                shares[firsts.partition_point(|first| *first <= slot) - 1] += 1;
            }
            let mean = 48.0 / f64::from(primaries);
            let largest = f64::from(shares.iter().copied().max().unwrap());
            assert!(largest <= 1.05 * mean, "{shares:?}");
        }
    }

    #[test]
    fn a_third_of_the_partitions_has_a_third_of_the_units() {
        let mut thirds = [0u32; 3];
        for n in 0..100_000 {
            let unit: Unit = format!("detector:unit-{n:06}").parse().unwrap();
            thirds[usize::from(partition_of(&unit, 48)) / 16] += 1;
        }
        assert!(thirds.iter().all(|units| f64::from(*units) <= 1.05 * 100_000.0 / 3.0), "{thirds:?}");
    }

    #[test]
    fn the_form_reads_back_and_other_words_do_not() {
        for tags in [HashTags::Plain, HashTags::Spread] {
            assert_eq!(HashTags::read(Some(&tags.to_string())), Some(tags));
        }
        assert_eq!((HashTags::read(None), HashTags::read(Some("other"))), (Some(HashTags::Plain), None));
    }
}
