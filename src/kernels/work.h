// What a launch moves and computes, stated once per argument block; profiles and benchmarks divide
// by the machine's rates. Bytes are those that have to cross memory: weights and keys once, however
// often a kernel reads them; activations once in and once out.
#pragma once

#include "device/launch_observer.h"
#include "kernels/device_args.h"
#include "kernels/op_args.h"

namespace nibble::kernels {

using device::ReadInts;
using device::Work;

// `read` may be empty where counts and ids are in the device's memory, see ObservedLaunch::work.
Work work_of(const MatMulArgs& args, const ReadInts& read);
Work work_of(const GroupedMatMulArgs& args, const ReadInts& read);
Work work_of(const SparseAttentionArgs& args, const ReadInts& read);
Work work_of(const IndexerScoreArgs& args, const ReadInts& read);
Work work_of(const TopKArgs& args, const ReadInts& read);
Work work_of(const RmsNormArgs& args, const ReadInts& read);
Work work_of(const RopeArgs& args, const ReadInts& read);
Work work_of(const HyperPreArgs& args, const ReadInts& read);
Work work_of(const HyperPostArgs& args, const ReadInts& read);
Work work_of(const HyperHeadArgs& args, const ReadInts& read);
Work work_of(const CompressArgs& args, const ReadInts& read);
Work work_of(const SelectExpertsArgs& args, const ReadInts& read);
Work work_of(const SwigluArgs& args, const ReadInts& read);
Work work_of(const CombineExpertsArgs& args, const ReadInts& read);
Work work_of(const EmbedArgs& args, const ReadInts& read);

Work work_of(const DeviceMatMulArgs& args, const ReadInts& read);
Work work_of(const DeviceMatMulPairArgs& args, const ReadInts& read);
Work work_of(const DeviceGroupedMatMulArgs& args, const ReadInts& read);
Work work_of(const DeviceEmbedArgs& args, const ReadInts& read);
Work work_of(const DeviceStreamUpdateArgs& args, const ReadInts& read);
Work work_of(const DeviceStreamTurnArgs& args, const ReadInts& read);
Work work_of(const DeviceStreamMixArgs& args, const ReadInts& read);
Work work_of(const DeviceLatentsArgs& args, const ReadInts& read);
Work work_of(const DeviceQueriesArgs& args, const ReadInts& read);
Work work_of(const DeviceSparseAttentionArgs& args, const ReadInts& read);
Work work_of(const DeviceAttendedArgs& args, const ReadInts& read);
Work work_of(const DeviceIndexerScoreArgs& args, const ReadInts& read);
Work work_of(const DeviceTopKArgs& args, const ReadInts& read);
Work work_of(const DeviceSelectExpertsArgs& args, const ReadInts& read);
Work work_of(const DeviceMakeSlotsArgs& args, const ReadInts& read);
Work work_of(const DeviceQuantizeArgs& args, const ReadInts& read);
Work work_of(const DeviceRmsNormArgs& args, const ReadInts& read);
Work work_of(const DeviceJoinMtpArgs& args, const ReadInts& read);
Work work_of(const DevicePlanArgs& args, const ReadInts& read);
Work work_of(const DeviceCopyRowsArgs& args, const ReadInts& read);
Work work_of(const DeviceSampleArgs& args, const ReadInts& read);

}  // namespace nibble::kernels
