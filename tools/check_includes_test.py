#!/usr/bin/env python3
"""Tests of check_includes.py on small trees written into a temporary folder."""

import tempfile
import unittest
from pathlib import Path

import check_includes as ci


class TreeTest(unittest.TestCase):
    def check(self, files):
        """Errors and warnings for a tree given as {path: text}."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            for path, text in files.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return ci.check_tree(root)[0]

    def assert_clean(self, files):
        self.assertEqual(self.check(files).errors, [])

    def assert_error(self, files, *fragments):
        errors = self.check(files).errors
        self.assertEqual(len(errors), 1, errors)
        for fragment in fragments:
            self.assertIn(fragment, errors[0])


class TableTest(unittest.TestCase):
    def test_rows_are_transitive(self):
        reach = ci.closure(ci.TABLE)
        self.assertLessEqual({"device", "quant", "tensor", "formats", "base", "obs"}, reach["model"])
        self.assertLessEqual({"kv", "model", "formats", "grammar"}, reach["engine"])
        self.assertEqual(reach["base"], {"base"})
        self.assertEqual(reach["obs"], {"base", "obs"})

    def test_towers_never_meet_outside_the_meeting_room(self):
        reach = ci.closure(ci.TABLE)
        for module in ci.POLICY:
            self.assertFalse(reach[module] & (set(ci.COMPUTE) - {"formats"}), module)
        for module in ci.COMPUTE:
            self.assertFalse(reach[module] & set(ci.POLICY), module)

    def test_a_cycle_is_refused(self):
        with self.assertRaisesRegex(ValueError, "base -> obs -> base"):
            ci.closure({"base": ["obs"], "obs": ["base"]})


class IncludeTest(TreeTest):
    def test_allowed(self):
        self.assert_clean({
            "src/kernels/rms_norm/rms_norm.cc": '#include "base/status.h"\n#include "tensor/dtype.h"\n',
            "src/kernels/rms_norm/rms_norm.h": "#include <vector>\n",
            "src/engine/engine.cc": '#include "kv/block_pool.h"\n#include "model/spec.h"\n',
            "src/tokenizer/chat/jinja.cc": '#include "tokenizer/bpe.h"\n#include "formats/gguf.h"\n',
            "tests/e2e/e2e_test.cc": '#include "engine/engine.h"\n#include "quant/format.h"\n',
        })

    def test_wrong_direction(self):
        self.assert_error({"src/tensor/buffer.cc": '\n#include "model/spec.h"\n'},
                          "src/tensor/buffer.cc:2:", "tensor/ may not include model/")

    def test_policy_sees_no_tensor(self):
        self.assert_error({"src/kv/block_pool.h": '#include "tensor/dtype.h"\n'}, "kv/ may not include tensor/")
        self.assert_error({"src/sched/scheduler.cc": "#include <cuda_runtime.h>\n"}, "CUDA header")
        self.assert_clean({"src/device/stream.cc": "#include <cuda_runtime.h>\n"})

    def test_a_test_obeys_the_table_too(self):
        self.assert_error({"src/kv/block_pool_test.cc": '#include "runtime/runtime.h"\n'}, "may not include runtime/")

    def test_only_tests_see_what_tests_share(self):
        self.assert_clean({"src/engine/engine_test.cc": '#include "support/heap_hook.h"\n'})
        self.assert_error({"src/engine/engine.cc": '#include "support/heap_hook.h"\n'}, "support/ is not a module")

    def test_runtime_sees_plan_headers_only(self):
        self.assert_clean({"src/runtime/runtime.cc": '#include "sched/step_plan.h"\n#include "kv/plan.h"\n'})
        self.assert_error({"src/runtime/runtime.cc": '#include "sched/scheduler.h"\n'}, "only plan headers")
        self.assert_error({"src/runtime/runtime.cc": '#include "grammar/mask.h"\n'}, "may not include grammar/")

    def test_a_plan_header_is_plain(self):
        self.assert_error({"src/sched/step_plan.h": '#include "sched/scheduler.h"\n'}, "a plan header sees only")
        self.assert_clean({"src/sched/step_plan.h": '#include "kv/kv_plan.h"\n#include "base/status.h"\n'})

    def test_flashinfer_reaches_kernels_and_the_rest_of_capi_does_not_need_it(self):
        self.assert_clean({"src/capi/flashinfer/remap.cc": '#include "kernels/kv_remap/kv_remap.h"\n'})
        self.assert_error({"src/capi/flashinfer/remap.cc": '#include "engine/engine.h"\n'}, "may not include engine/")

    def test_path_from_src_and_known_module(self):
        self.assert_error({"src/base/log.cc": '#include "log.h"\n'}, "write include paths from src/")
        self.assert_error({"src/base/log.cc": '#include "nowhere/log.h"\n'}, "not a module")
        self.assert_error({"src/nowhere/log.cc": "int x;\n"}, "no row")

    def test_commented_out_is_not_included(self):
        self.assert_clean({"src/kv/block_pool.cc": '// #include "tensor/dtype.h"\n/*\n#include "model/spec.h"\n*/\n'})

    def test_public_headers(self):
        self.assert_clean({"src/capi/flashinfer/remap.cc": '#include "cachalot/flashinfer.h"\n'})
        self.assert_error({"src/engine/engine.cc": '#include "cachalot/flashinfer.h"\n'}, "not a module")
        self.assert_error({"include/cachalot/cachalot.h": '#include "base/status.h"\n'}, "public headers")

    def test_intrinsics_in_named_files(self):
        self.assert_clean({"src/kernels/add/add_avx2.cc": "__m256 x;\n", "src/kernels/add/add.h": "",
                           "src/base/thread_pool.cc": "#include <immintrin.h>\nvoid F() { _mm_pause(); }\n"})
        self.assert_error({"src/model/arch/llama.cc": "auto x = _mm256_setzero_ps();\n"}, "llama.cc:1:", "_avx2.cc")


class CMakeTest(TreeTest):
    def test_links_follow_the_table(self):
        base = {"src/base/CMakeLists.txt": "cachalot_module(base SOURCES a.cc DEPS fmt::fmt)\n",
                "src/model/CMakeLists.txt": "cachalot_module(model SOURCES m.cc DEPS cachalot_base)\n"}
        self.assert_clean(base)
        self.assert_error(base | {"src/kv/CMakeLists.txt": "cachalot_module(kv\n  DEPS cachalot_model)\n"},
                          "src/kv/CMakeLists.txt:2:", "kv/ may not link model/")
        self.assert_clean(base | {"src/kv/CMakeLists.txt": "cachalot_module(kv DEPS cachalot_base) # cachalot_model\n"})

    def test_the_folder_decides_not_the_target_name(self):
        self.assert_error({"src/tokenizer/chat/CMakeLists.txt": "cachalot_module(chat SOURCES c.cc)\n",
                           "src/tensor/CMakeLists.txt": "cachalot_module(tensor DEPS cachalot_chat)\n"},
                          "tensor/ may not link tokenizer/")


class HouseRulesTest(TreeTest):
    def test_environment(self):
        self.assert_clean({"src/base/dirs.cc": 'auto* x = std::getenv("XDG_CACHE_HOME");\n'})
        self.assert_error({"src/base/dirs.cc": 'auto* x = std::getenv("CACHALOT_FAST");\n'}, "no API")
        self.assert_error({"src/cli/main.cc": "auto* x = getenv(name);\n"}, "no API")
        self.assert_clean({"src/base/dirs_test.cc": 'auto* x = getenv("ANYTHING");\n'})

    def test_the_library_never_prints_or_exits(self):
        for call in ("std::abort();", "exit(1);", 'std::printf("x");', "std::cerr << 1;", 'fmt::print("x");'):
            self.assert_error({"src/kv/block_pool.cc": f"void F() {{ {call} }}\n"}, "never prints, exits or aborts")
            self.assert_clean({"src/cli/main.cc": f"void F() {{ {call} }}\n"})
        self.assert_clean({"src/kv/block_pool.cc":
                           'void F() { stream.abort(); p->exit(1); snprintf(b, 1, "exit(1)"); } // abort()\n'})

    def test_sizes(self):
        self.assertEqual(len(self.check({"src/kv/a.cc": "\n" * 401}).warnings), 1)
        self.assert_error({"src/kv/a.cc": "\n" * 801}, "801 lines")
        self.assert_clean({"src/kv/a.cc": "// Generated by tools/make_tables.py\n" + "\n" * 801})

    def test_names_are_unique(self):
        self.assert_clean({"src/kv/pool.h": "", "src/kv/pool.cc": "", "src/kv/pool_test.cc": ""})
        self.assert_error({"src/kv/pool.h": "", "src/moe/pool.cc": ""}, "'pool' is taken in src/kv/")
        self.assert_clean({"src/kv/plan.h": "", "src/sched/plan.h": ""})
        self.assert_clean({"src/kv/pool.h": "", "tests/fuzz/pool_fuzz.cc": ""})
        self.assert_error({"src/kv/pool_test.cc": "", "tests/e2e/pool_test.cc": ""}, "'pool_test' is taken")
        self.assert_error({"src/kv/BlockPool.h": ""}, "snake_case")

    def test_kernel_folders(self):
        self.assert_clean({"src/kernels/add/add.h": "", "src/kernels/add/add_ref.cc": "",
                           "src/kernels/common/compare.h": "", "src/kernels/common/compare.cc": ""})
        self.assert_error({"src/kernels/add/add_ref.cc": ""}, "needs add.h")
        self.assert_clean({"src/kernels/add/add.h": "", "src/kernels/add/sum.cc": "", "src/kernels/add/add_float_avx2.cc": "",
                           "src/kernels/add/exp_avx2.h": ""})
        self.assert_error({"src/kernels/add/add.h": "", "src/kernels/add/sum_avx2.cc": ""}, "a variant of what?")
        self.assert_error({"src/kernels/add/x/add.h": ""}, "one level deep")

    def test_foreign_words(self):
        self.assert_error({"README.md": "see /" "work/main\n"}, "README.md:1:", "absolute path")
        self.assert_error({"docs/a.md": "\nthe sub" "agent said\n"}, "docs/a.md:2:")
        self.assert_clean({"docs/a.md": "bench/wo" "rk/ and $dir/wo" "rk/ are fine; so is framework/x\n"})

    def test_line_numbers_survive_comments_and_raw_strings(self):
        self.assert_error({"src/kv/a.cc": '/* a\n b */\nauto s = R"x(\n"\n)x";\nvoid F() { abort(); }\n'},
                          "src/kv/a.cc:6:")


if __name__ == "__main__":
    unittest.main()
