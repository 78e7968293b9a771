/* The floor of benchmarks/kernel.py: token-level advantages of whole groups in one plain loop, tests looked up. */
#include <math.h>
#include <stdint.h>

typedef struct {
    int32_t token, last_rollout;
    int32_t with[2], count[2]; /* [0] wrong, [1] right */
} Entry;

/*
 * tests[table_start[g] + (right_with * (n_wrong + 1) + wrong_with) * 2] holds strength and Cohen term of group g.
 * place: one int32 per vocabulary id, never cleared; entries and entry_of: as long as the largest group.
 */
void score(const int32_t *tokens, const int64_t *offsets, const int64_t *group_first, int64_t n_groups,
           const int8_t *correct, const double *base, const double *tests, const int64_t *table_start,
           int32_t *place, Entry *entries, int32_t *entry_of, double *weight, float *advantages, float *key_weight)
{
    for (int64_t g = 0; g < n_groups; g++) {
        int64_t first = group_first[g], last = group_first[g + 1], n_entries = 0;
        int64_t n_rollouts[2] = {0, 0}, length[2] = {0, 0}, start = offsets[first];
        for (int64_t r = first; r < last; r++) {
            int right = correct[r];
            n_rollouts[right]++;
            length[right] += offsets[r + 1] - offsets[r];
            for (int64_t i = offsets[r]; i < offsets[r + 1]; i++) {
                int32_t token = (int32_t)tokens[i], e = place[token];
                if ((uint32_t)e >= (uint32_t)n_entries || entries[e].token != token) {
                    e = (int32_t)n_entries++;
                    place[token] = e;
                    entries[e] = (Entry){.token = token, .last_rollout = -1};
                }
                Entry *entry = &entries[e];
                entry->count[right]++;
                entry->with[right] += entry->last_rollout != (int32_t)r;
                entry->last_rollout = (int32_t)r;
                entry_of[i - start] = e;
            }
        }
        double average = 0.5 * (double)(length[0] + length[1]);
        double scale_right = length[1] * (1 + length[1] / average), scale_wrong = length[0] * (1 + length[0] / average);
        for (int64_t e = 0; e < n_entries; e++) {
            const Entry *entry = &entries[e];
            const double *test = tests + table_start[g] + (entry->with[1] * (n_rollouts[0] + 1) + entry->with[0]) * 2;
            double right = 3.0 * entry->count[1] / (scale_right + entry->count[1]);
            double wrong = 3.0 * entry->count[0] / (scale_wrong + entry->count[0]);
            double direction = test[1] + right / (wrong + 1e-5) - wrong / (right + 1e-5);
            weight[e] = tanh(0.5 * test[0] * direction);
        }
        for (int64_t r = first; r < last; r++)
            for (int64_t i = offsets[r]; i < offsets[r + 1]; i++) {
                double w = weight[entry_of[i - start]];
                key_weight[i] = (float)w;
                advantages[i] = (float)(base[r] + w);
            }
    }
}
