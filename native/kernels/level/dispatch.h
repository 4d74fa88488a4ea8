// How a kernel family's half for a level is found: the level's own, or that of the level it extends, and so on.
//
// A half is one table: its functions, and what the host half has to know of them. The family's header declares the tables of all
// its levels by INGOT_FAMILY(norm, NormTable); the level code defines its own, const NormTable norm_table = {...}, in namespace
// ingot::INGOT_LEVEL; the host half takes half_for(norm_halves, level) once, when a kernel is made, or of a
// table that leaves members out member_for(matmul_halves, level, &MatmulTable::float32).
#pragma once

#include <cstddef>

#include "levels.h"

#define INGOT_DECLARE_HALF(level, family, Table) \
  namespace level {                              \
  extern const Table family##_table;             \
  }
#define INGOT_LIST_HALF(level, family, Table) {Level::level, &level::family##_table},

/// In namespace ingot, behind Table: declares the family's tables and lists them as family_halves.
#define INGOT_FAMILY(family, Table)                                   \
  INGOT_LEVELS_OF_##family(INGOT_DECLARE_HALF, family, Table)         \
  static constexpr Half<Table> family##_halves[] = {INGOT_LEVELS_OF_##family(INGOT_LIST_HALF, family, Table)};

namespace ingot {

template <class Table>
struct Half {
  Level level;
  const Table* table;
};

/// The half that runs at `level`.
template <class Table, std::size_t count>
const Table& half_for(const Half<Table> (&halves)[count], Level level) {
  for (;; level = extended_by(level))  // ends: every family has a half at the first level
    for (const Half<Table>& half : halves)
      if (half.level == level) return *half.table;
}

/// A member that tables may leave out: of the nearest half, from that of `level` down, that has it, or of the first level's.
template <class Table, std::size_t count, class Member>
const Member& member_for(const Half<Table> (&halves)[count], Level level, Member Table::*member) {
  while (!(half_for(halves, level).*member) && level != extended_by(level)) level = extended_by(level);
  return half_for(halves, level).*member;
}

}  // namespace ingot
