//! The partition of a unit or a group. The rule never changes: every instance, and every program that reads the
//! keys, has to agree on it.

use crate::presence::Unit;

/// The partition that holds a unit: CRC-16/XMODEM of `<kind>:<unit>`, modulo their number.
pub fn partition_of(unit: &Unit, partitions: u16) -> u16 {
    checksum(unit) % partitions.max(1)
}

/// The partition that holds a group, as if its key were the name of a unit.
pub fn partition_of_group(key: &str, partitions: u16) -> u16 {
    crc16(&[key.as_bytes()]) % partitions.max(1)
}

/// The indexes of units by partition, without partitions that have none of them: for steps that lock each once.
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

/// CRC-16/XMODEM of a text in parts. Each heartbeat needs a few, so these are plain loops, which are fast at every level of
/// optimization.
pub fn crc16(parts: &[&[u8]]) -> u16 {
    let mut crc = 0u16;
    for part in parts {
        for byte in *part {
            crc = (crc << 8) ^ CRC16[usize::from((crc >> 8) as u8 ^ byte)];
        }
    }
    crc
}

const CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
