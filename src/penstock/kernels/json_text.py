"""Texts of JSON inside kernels: strings, numbers, dates and instants, checked byte by byte.

What is written in any other way than most writers do gives -1, and is left to the careful decoder
(`penstock.pipeline.tables.json_schema`), which is the slow twin.
"""

from typing import Final

import numpy as np

from penstock.kernels.arrays import wide
from penstock.kernels.jit import kernel
from penstock.kernels.memory import load, load_word, lowest_bit
from penstock.kernels.shapes import MICROSECONDS_MAX, MICROSECONDS_MIN
from penstock.kernels.slots import utf8_end

_LOWS = np.uint64(0x0101010101010101)
_HIGHS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_NOTHING = np.uint64(0)

DIGITS_MAX: Final = 18
"""More may not fit 64 bits."""
_EXPONENT_DIGITS_MAX: Final = 3
_DAY_US: Final = 86_400_000_000


@kernel
def skip_spaces(address: int, at: int, end: int) -> int:
    """The position of the next byte that is not white space."""
    while at < end:
        found = load(address, at)
        if found > 32 or not (found == 32 or found == 10 or found == 13 or found == 9):
            break
        at += 1
    return at


@kernel
def string_end(address: int, at: int, end: int) -> tuple[int, int]:
    """The position of the quote that ends a string, and whether it has escapes.

    -1: it does not end, holds a control character, an escape that is none, half a surrogate pair,
    or bytes that are not UTF-8.

    Args:
        at: after the quote that begins it.
    """
    is_escaped = wide(0)
    while True:
        while at + 8 <= end:
            # The lowest byte that is a quote, a backslash, a control or not ASCII, eight at once.
            word = load_word(address, at)
            quotes = word ^ _QUOTES
            slashes = word ^ _BACKSLASHES
            found = (
                ((quotes - _LOWS) & ~quotes)
                | ((slashes - _LOWS) & ~slashes)
                | ((word - _SPACES) & ~word)
                | word
            ) & _HIGHS
            if found != _NOTHING:
                at += lowest_bit(found) >> 3
                break
            at += 8
        if at >= end:
            return -1, 0
        byte = load(address, at)
        if byte == 34:
            return at, is_escaped
        if byte < 32:
            return -1, 0
        if byte == 92:
            is_escaped = wide(1)
            at = _escape_end(address, at, end)
        elif byte >= 128:
            at = utf8_end(address, at, end)
        else:
            at += 1
        if at < 0:
            return -1, 0


@kernel
def _escape_end(address: int, at: int, end: int) -> int:
    if at + 2 > end:
        return -1
    kind = load(address, at + 1)
    if kind == 117:
        unit = hex_unit(address, at + 2, end)
        if unit < 0 or 0xDC00 <= unit < 0xE000:
            return -1
        if unit < 0xD800 or unit >= 0xE000:
            return at + 6
        if at + 8 > end or load(address, at + 6) != 92 or load(address, at + 7) != 117:
            return -1
        low = hex_unit(address, at + 8, end)
        return at + 12 if 0xDC00 <= low < 0xE000 else -1
    # " \\ / b f n r t
    if kind == 34 or kind == 92 or kind == 47 or kind == 98:
        return at + 2
    return at + 2 if kind == 102 or kind == 110 or kind == 114 or kind == 116 else -1


@kernel
def hex_unit(address: int, at: int, end: int) -> int:
    """The number of four hexadecimal digits; -1: they are not."""
    if at + 4 > end:
        return -1
    value = wide(0)
    for index in range(4):
        byte = load(address, at + index)
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 65 <= byte <= 70:
            digit = byte - 55
        elif 97 <= byte <= 102:
            digit = byte - 87
        else:
            return -1
        value = value << 4 | digit
    return value


@kernel
def read_number(address: int, at: int, end: int) -> tuple[int, int, int, int, int]:
    """A number: (position after it, digits' value, power of ten, how many digits, is not whole).

    The value has no sign. A position of -1: it is not a JSON number. With more than DIGITS_MAX
    digits the value is none.
    """
    first = at
    value = wide(0)
    power = wide(0)
    while at < end:
        digit = load(address, at) - 48
        if digit < 0 or digit > 9:
            break
        value = value * 10 + digit
        at += 1
    digits = at - first
    if digits == 0 or (digits > 1 and load(address, first) == 48):
        return -1, 0, 0, 0, 0
    is_fraction = wide(0)
    if at < end and load(address, at) == 46:
        is_fraction = wide(1)
        at += 1
        point = at
        while at < end:
            digit = load(address, at) - 48
            if digit < 0 or digit > 9:
                break
            value = value * 10 + digit
            at += 1
        if at == point:
            return -1, 0, 0, 0, 0
        power = point - at
        digits += at - point
    if at < end and (load(address, at) | 32) == 101:
        is_fraction = wide(1)
        at += 1
        is_negative = False
        if at < end:
            sign = load(address, at)
            is_negative = sign == 45
            if is_negative or sign == 43:
                at += 1
        begin = at
        exponent = wide(0)
        while at < end:
            digit = load(address, at) - 48
            if digit < 0 or digit > 9:
                break
            exponent = exponent * 10 + digit
            at += 1
        if at == begin or at - begin > _EXPONENT_DIGITS_MAX:
            return -1, 0, 0, 0, 0
        power += -exponent if is_negative else exponent
    return at, value, power, digits, is_fraction


@kernel
def _digits(address: int, at: int, count: int) -> int:
    value = wide(0)
    for index in range(count):
        digit = load(address, at + index) - 48
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@kernel
def read_days(address: int, at: int, end: int) -> tuple[int, int]:
    """The days since 1970 of a date of ten characters, as in 2024-02-29: (1, days); (0, 0): none.

    Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", days_from_civil.
    """
    if at + 10 > end or load(address, at + 4) != 45 or load(address, at + 7) != 45:
        return 0, 0
    year = _digits(address, at, 4)
    month = _digits(address, at + 5, 2)
    day = _digits(address, at + 8, 2)
    if year < 1 or month < 1 or month > 12 or day < 1:
        return 0, 0
    last = wide(31)
    if month == 2:
        last = wide(29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28)
    elif month == 4 or month == 6 or month == 9 or month == 11:
        last = wide(30)
    if day > last:
        return 0, 0
    from_march = year - (1 if month <= 2 else 0)
    era = from_march // 400
    year_of_era = from_march - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    day_of_era = year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year
    return 1, era * 146_097 + day_of_era - 719_468


@kernel
def read_instant(address: int, at: int, end: int, is_exact: int) -> tuple[int, int]:
    """The microseconds since 1970 of an instant, as in 2024-02-29T12:00:00.5+01:00: (1, it).

    (0, 0): it is written otherwise, has no zone, or isn't within the years 1 to 9999.

    Args:
        is_exact: 1: none that is finer than microseconds. 0: what is finer is cut off.
    """
    is_date, days = read_days(address, at, end)
    if is_date == 0 or at + 20 > end:
        return 0, 0
    between = load(address, at + 10)
    if between != 84 and between != 32:
        return 0, 0
    if load(address, at + 13) != 58 or load(address, at + 16) != 58:
        return 0, 0
    hour = _digits(address, at + 11, 2)
    minute = _digits(address, at + 14, 2)
    second = _digits(address, at + 17, 2)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return 0, 0
    at += 19
    fraction = wide(0)
    if load(address, at) == 46:
        at += 1
        count = 0
        while at < end:
            digit = load(address, at) - 48
            if digit < 0 or digit > 9:
                break
            if count < 6:
                fraction = fraction * 10 + digit
            elif is_exact:
                return 0, 0
            count += 1
            at += 1
        if count == 0 or count > 9:
            return 0, 0
        for _ in range(count, 6):
            fraction *= 10
    if at >= end:
        return 0, 0
    zone = wide(0)
    sign = load(address, at)
    if sign == 90:
        at += 1
    elif (sign == 43 or sign == 45) and at + 6 <= end and load(address, at + 3) == 58:
        hours = _digits(address, at + 1, 2)
        minutes = _digits(address, at + 4, 2)
        if hours < 0 or hours > 23 or minutes < 0 or minutes > 59:
            return 0, 0
        zone = (hours * 60 + minutes) * (1 if sign == 43 else -1)
        at += 6
    else:
        return 0, 0
    if at != end:
        return 0, 0
    found = days * _DAY_US + (((hour * 60 + minute - zone) * 60) + second) * 1_000_000 + fraction
    if found < MICROSECONDS_MIN or found > MICROSECONDS_MAX:
        return 0, 0
    return 1, found
