import re

import torch
from torch import nn

import gradproof
from gradproof.report.page import figure, render


def test_page_is_self_contained_and_says_the_verdict_first():
    """The page has no external references, and names are escaped."""
    module = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
    module[0].weight.register_hook(lambda g: 2 * g)
    record = gradproof.verify(module, (torch.randn(3, 4),), name="<script>alert(1)</script>").to_dict()
    page = render("verify.html", record)
    assert page.index('class="verdict"') < page.index("<svg") < page.index("<table")
    assert "<script>alert" not in page and "&lt;script&gt;" in page
    assert not re.search(r'(?:src|href)="(?!#)', re.sub(r'xlink:href="#[^"]*"', "", page))
    assert page.index(">refuted<") < page.index(">proven<")


def test_figures():
    assert (figure(None), figure(0), figure(1.234e-9)) == ("", "0", "1.2e-09")
