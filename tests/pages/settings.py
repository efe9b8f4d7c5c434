"""docs/settings.md, made from the settings."""

from penstock.config.fields import Kind, SettingField, setting_fields

_HEAD = """\
# Settings of a server

Made from `penstock.config.settings` by `make docs`.

A setting is taken from the first of these that gives it: the command line (`--segment-bytes
16MiB`), the environment (`PENSTOCK_SEGMENT_BYTES=16MiB`), a TOML file (`segment_bytes =
"16MiB"`, named by `--config FILE` or `PENSTOCK_CONFIG`), its default. Sizes and durations are
numbers in the unit that ends the name, or text with a unit: B, KiB, MiB, GiB, TiB, KB, MB, GB,
TB; ms, s, min, h, d. An unknown name in the file or the environment is an error, which names
the nearest setting.
"""


def settings_page() -> str:
    """The page as Markdown."""
    sections: dict[str, list[SettingField]] = {}
    for field in setting_fields().values():
        sections.setdefault(field.about.section, []).append(field)
    parts = [_HEAD]
    for title, fields in sections.items():
        parts.append(f"\n## {title}\n\n")
        parts.append("| setting | default | allowed | what it does |\n| --- | --- | --- | --- |\n")
        parts.extend(_row(field) for field in fields)
    return "".join(parts)


def _row(field: SettingField) -> str:
    default = field.show(field.default)
    text = field.about.text
    if field.about.kafka:
        text += f" Kafka: `{field.about.kafka}`."
    allowed = field.allowed
    if field.kind in {Kind.SIZE, Kind.DURATION_MS, Kind.DURATION_MINUTES, Kind.NUMBER}:
        allowed = f"{field.show(field.about.least)} to {field.show(field.about.most)}"
        if field.about.most == (1 << 31) - 1:
            allowed = f"{field.show(field.about.least)} or more"
    return f"| `{field.name}` | {f'`{default}`' if default else 'empty'} | {allowed} | {text} |\n"
