//! The partition of a unit or a group. The rule never changes: every instance, and every program that reads the
//! keys, has to agree on it.

use crate::presence::Unit;

/// The partition that holds a unit: CRC-16/XMODEM of `<kind>:<unit>`, modulo the number of partitions.
pub fn partition_of(unit: &Unit, partitions: u16) -> u16 {
    checksum(unit) % partitions.max(1)
}

/// The page of a unit in its partition, where units lie on pages: the low part of the checksum is the partition, the high
/// part the page.
pub(super) fn page_of(unit: &Unit, partitions: u16, pages: u32) -> u32 {
    u32::from(checksum(unit) / partitions.max(1)) % pages.max(1)
}

/// The partition that holds a group: computed from its key, like that of a unit from its name.
pub fn partition_of_group(key: &str, partitions: u16) -> u16 {
    crc16(&[key.as_bytes()]) % partitions.max(1)
}

/// The prefix of the key of a timer's group; the timer's id follows. No label has this name.
pub(super) const TIMER: &str = "timer:";

/// The partition of a timer: that of its group.
pub(super) fn partition_of_timer(id: &str, partitions: u16) -> u16 {
    crc16(&[TIMER.as_bytes(), id.as_bytes()]) % partitions.max(1)
}

/// The indexes of units by partition, without partitions that have no unit: for steps that lock each partition once.
pub fn by_partition<'a>(
    units: impl IntoIterator<Item = &'a Unit>,
    partitions: u16,
) -> impl Iterator<Item = (u16, Vec<usize>)> {
    let mut indexes = vec![Vec::new(); usize::from(partitions.max(1))];
    for (index, unit) in units.into_iter().enumerate() {
        indexes[usize::from(partition_of(unit, partitions))].push(index);
    }
    (0..).zip(indexes).filter(|(_, indexes)| !indexes.is_empty())
}

/// CRC-16/XMODEM of `<kind>:<unit>`.
pub fn checksum(unit: &Unit) -> u16 {
    crc16(&[unit.kind.as_str().as_bytes(), b":", unit.id.as_str().as_bytes()])
}

/// CRC-16/XMODEM of a text in parts. Each heartbeat needs a few checksums, so four bytes are processed at a time:
/// with single bytes, each would wait for the table entry of the byte before.
pub fn crc16(parts: &[&[u8]]) -> u16 {
    let mut crc = 0u16;
    for part in parts {
        let mut fours = part.chunks_exact(4);
        for four in &mut fours {
            let [high, low] = crc.to_be_bytes();
            crc = CRC16[3][usize::from(four[0] ^ high)]
                ^ CRC16[2][usize::from(four[1] ^ low)]
                ^ CRC16[1][usize::from(four[2])]
                ^ CRC16[0][usize::from(four[3])];
        }
        for byte in fours.remainder() {
            crc = (crc << 8) ^ CRC16[0][usize::from((crc >> 8) as u8 ^ byte)];
        }
    }
    crc
}

/// The checksum of each byte with 0, 1, 2 and 3 zeros after it.
static CRC16: [[u16; 256]; 4] = {
    let mut tables = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut zeros = 0;
        while zeros < 4 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
                bit += 1;
            }
            tables[zeros][byte] = crc;
            zeros += 1;
        }
        byte += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum as in the specification: bit by bit.
    fn plain(bytes: &[u8]) -> u16 {
        let step = |crc: u16| if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        bytes.iter().fold(0, |crc, byte| (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| step(crc)))
    }

    #[test]
    fn a_checksum_is_that_of_the_specification_however_the_text_is_cut() {
        assert_eq!(crc16(&[b"123456789"]), 0x31c3);
        let text: Vec<u8> = (0..=255).rev().collect();
        for length in 0..40 {
            for cut in 0..=length {
                let (head, tail) = text[..length].split_at(cut);
                assert_eq!(crc16(&[head, tail]), plain(&text[..length]), "{cut} of {length}");
            }
        }
    }
}
